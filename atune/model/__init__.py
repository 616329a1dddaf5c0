"""Inputs and results of tuning as plain data: spaces, candidates, devices, artifacts, measurements, settings, jobs.

Of atune, this package imports only `errors`. It imports neither torch nor tilelang. Names and defaults of the user's
kernel are read in `workload`, and `journal` records runs.
"""
