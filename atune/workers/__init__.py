"""The worker processes of a run on this machine, the fork server that forks them, and the files that later runs use.

This package imports `model`, `journal`, `workload` and the protocols of `engine`, but no stage: worker processes load
stages by import path. The engine decides what to do next, and `stages` runs a candidate's code. `cluster` has the
workers of a run on several machines.
"""
