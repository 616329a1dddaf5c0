"""Functions that present results: text for a screen, rows, the page, progress, the log, and comparisons of runs.

This package imports `model`, `workload` and `journal`, starts no process, and runs no code of a workload. `journal`
knows the outcome of a run. This package decides which words and figures every interface shows to a reader.
"""
