"""Runs on many machines: a `Machine` that has the workers of every node. Ray is the transport.

It imports `engine`'s protocols, `workload`, and `workers`, whose `LocalMachine` each node's agent runs, and carries the
jobs of `model.jobs`. The engine makes all decisions, and the nodes enforce the deadlines of candidates.
"""
