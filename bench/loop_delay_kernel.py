"""The kernel that `loop_delay` tunes."""

from __future__ import annotations

from typing import Any

import tilelang.language as T


def scale(n: int, factor: int = 2, block: int = 64) -> Any:
    """B = A * 2, in `factor` steps."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * factor / factor * 2

    return main
