"""What outlives a run: artifacts, and results by what they depend on."""
