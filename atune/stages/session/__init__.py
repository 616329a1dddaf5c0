"""A worker's session: workload, target, settings; its answers about spaces, and about this machine's devices.

It imports `model`, `workload`, `stages.tilelang` and the messages of `workers.processes`. What is compiled and measured
in a session is in `stages.compile` and `stages.measure`.
"""
