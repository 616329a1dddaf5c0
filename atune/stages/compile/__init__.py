"""The compile worker's stages: elaborate, lower, generate, compile, link."""
