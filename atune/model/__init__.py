"""Inputs and results of tuning as plain data: spaces, candidates, devices, artifacts, measurements, settings, jobs.

It imports nothing of atune but `errors`, and neither torch nor tilelang. What asks the user's kernel for its names and
defaults is in `workload`; what is recorded of a run is in `journal`.
"""
