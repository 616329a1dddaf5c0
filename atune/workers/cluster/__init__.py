"""Runs on many machines: a `Machine` that has the workers of every node. Ray is the transport.

It imports `engine`'s protocols, `model.jobs`, `workload` and `workers`. Each node's agent runs a `LocalMachine`, and
the messages carry jobs. The engine makes all decisions, and the nodes enforce the deadlines of candidates.
"""
