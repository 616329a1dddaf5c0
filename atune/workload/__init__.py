"""Workloads (kernels with a space, inputs and a reference), their fingerprints, and how they are sent to workers.

This package imports only `model`, and never tilelang. `stages.frontend` elaborates the kernel of a workload, and
`workers` passes on the workloads that `ship` packs.
"""
