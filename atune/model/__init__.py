"""Inputs and results of tuning: spaces, candidates, devices, artifacts, measurements, settings."""
