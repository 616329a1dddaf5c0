"""What a worker is told when it begins: workload, target, settings."""
