"""Inputs and results of tuning as plain data: spaces, candidates, devices, artifacts, measurements, settings, jobs.

This package imports no other part of atune except `errors`, and neither torch nor tilelang. `workload` reads names and
defaults from the user's kernel, and `journal` records runs.
"""
