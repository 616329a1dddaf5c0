"""A kernel with its space, inputs and reference: its description, its fingerprint, and the way to the workers.

It imports `model` alone. tilelang is not asked here: `stages.frontend` elaborates what a workload holds, and
`workers` carries what `ship` packs.
"""
