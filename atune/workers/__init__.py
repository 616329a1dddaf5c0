"""Processes that do a run's work, on this machine or on a cluster's nodes, and stores.

It imports `model`, `journal`, `workload` and the engine's protocols, and no stage: processes import these by path. What
is done next is the engine's to say; what a candidate's code does is in `stages`.
"""
