"""Runs on many machines: a `Machine` that has the workers of every node. Ray is the transport.

The folder imports `engine`'s protocols, `workload` and `workers`, because each node's agent runs a `LocalMachine`. The
messages carry the jobs of `model.jobs`. The engine makes all decisions, and the nodes enforce candidates' deadlines.
"""
