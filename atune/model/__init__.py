"""Inputs and results of tuning as plain data: spaces, candidates, devices, artifacts, measurements, settings, jobs.

Of atune, this package imports only `errors`. It imports neither torch nor tilelang. `workload` reads names and defaults
from the user's kernel, and `journal` records runs.
"""
