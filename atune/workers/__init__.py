"""What runs, and keeps, a run's work: the fork server, workers of this machine and of a cluster, and stores."""
