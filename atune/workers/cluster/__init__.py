"""Runs on many machines: the stages of each node behind one `Machine`. Ray is the transport.

It imports `engine`'s protocols, `workload`, and `workers`, whose machine each node's agent runs, and carries the jobs
of `model.jobs`. Decisions stay with the one engine; deadlines of candidates are kept on the node.
"""
