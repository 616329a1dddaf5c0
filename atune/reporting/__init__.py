"""Present results: as text, as rows, as an HTML page, as progress, in logs, and in comparisons of runs.

This package imports `model`, `workload` and `journal`. It starts no process and runs no code of a workload. `journal`
knows the outcome of a run, and this package decides with which words and numbers an interface shows the outcome.
"""
