"""Views of a run for people: progress, log and report."""
