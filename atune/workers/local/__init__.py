"""The engine's protocols by processes of this machine: compile workers, device workers, the compile service.

It imports `model`, `workload`, the other folders of `workers` but the cluster, and `engine`'s protocols. Killing and
reaping are `workers.processes`; which job comes next is the engine's.
"""
