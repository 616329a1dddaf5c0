"""Kernel functions as tilelang elaborates them, the roles of their parameters, and winners as tilelang's kernels.

It imports `model`, `bundle`, `workload` and `stages.measure`. Lowering begins where the PrimFunc ends: in
`stages.compile`.
"""
