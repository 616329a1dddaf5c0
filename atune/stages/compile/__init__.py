"""In a compile worker: elaborate, lower, generate, compile, link."""
