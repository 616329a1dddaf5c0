"""The processes that do a run's work on this machine, the fork server that makes them, and the files that they store.

It imports `model`, `journal`, `workload` and `engine`'s protocols, but no stage: the processes import stages by
path. The engine decides what to do next, and `stages` runs a candidate's code. `cluster` has the nodes of a cluster.
"""
