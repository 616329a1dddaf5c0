"""Runs on several machines: a `Machine` whose workers are on the nodes of a Ray cluster.

This package imports the protocols of `engine`, `model.jobs`, `workload` and `workers`. On every node, an agent runs a
`LocalMachine`, and Ray carries the jobs to the agents. The engine makes all decisions, and the nodes enforce deadlines.
"""
