"""Persistent data: artifacts, and results with their dependencies."""
