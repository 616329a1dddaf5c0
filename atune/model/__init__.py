"""What is tuned and what is found: spaces, candidates, devices, artifacts, measurements, settings."""
