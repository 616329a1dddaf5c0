"""Programs of candidates for the task `DOUBLE`."""

from __future__ import annotations


def program(store: str = "B[i] = A[i] * 2.0", before: str = "", of: str = "float32", top: str = "") -> str:
    """Return a program whose kernel has the statement `store`, and whose function first executes `before`."""
    return f"""import tilelang.language as T

{top}
def double(n, block=64):
    {before or "pass"}
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "{of}")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for j in T.serial(block):
                i: T.int32 = bx * block + j
                {store}

    return main
"""
