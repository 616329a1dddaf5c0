"""A worker's session: workload, target, settings."""
