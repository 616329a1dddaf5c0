"""Events, the fold over them, results, and the files that hold them.

It imports `model` and `workload`. Events are made in `engine`; how results are shown is in `reporting`, and which
journals are kept and found again is in `workers`.
"""
