"""Inputs and results of tuning as plain data: spaces, candidates, devices, artifacts, measurements, settings, jobs.

It imports nothing of atune except `errors`, and neither torch nor tilelang. `workload` asks the user's kernel for its
names and defaults, and `journal` records runs.
"""
