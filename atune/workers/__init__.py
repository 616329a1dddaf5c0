"""Processes that do a run's work on this machine, the fork server that makes them, and what they store.

It imports `model`, `journal`, `workload` and `engine`'s protocols, and no stage: processes import these by path. What
is done next is the engine's to say; what a candidate's code does is in `stages`. A cluster's nodes are in `cluster`.
"""
