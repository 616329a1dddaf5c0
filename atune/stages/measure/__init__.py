"""In a device's process: load, check and time artifacts."""
