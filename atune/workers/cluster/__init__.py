"""Runs on many machines: a `Machine` that has the workers of every node. Ray is the transport.

It imports `engine`'s protocols, `workload`, and `workers`, whose `LocalMachine` each node's agent runs. The messages
carry the jobs of `model.jobs`. The engine makes all decisions; the nodes enforce the deadlines of candidates.
"""
