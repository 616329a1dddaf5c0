"""Functions that present results: text for a screen, rows, the page, progress, the log, and comparisons of runs.

It imports `model`, `workload` and `journal`, and nothing here starts a process or runs code of a workload. `journal`
knows the outcome of a run. This folder decides which words and figures a reader sees, the same in every interface.
"""
