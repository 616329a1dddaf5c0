"""What a person sees of a run: progress, log and report."""
