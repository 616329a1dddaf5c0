"""The device process's stages: load, check and time artifacts."""
