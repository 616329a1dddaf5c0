"""Workloads (kernels with a space, inputs and a reference), their fingerprints, and how they are sent to workers.

This package imports only `model`, and never imports tilelang, because `stages.frontend` elaborates the kernel of a
workload, and `workers` passes on workloads that `ship` has packed.
"""
