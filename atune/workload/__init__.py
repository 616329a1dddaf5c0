"""Workloads (kernels with a space, inputs and a reference): their description, fingerprint and transport to workers.

This package imports only `model`, and never tilelang: `stages.frontend` elaborates a workload's kernel, and `workers`
carries the workloads that `ship` packs.
"""
