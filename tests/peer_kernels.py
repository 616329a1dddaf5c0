"""Kernels of the tests of the drop-in, which workers load too."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

N = 64


def scale(n: int = N, factor: int = 2, block: int = 16) -> Any:
    """B = A * factor."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * factor

    return main


def picky(block: int, n: int = N) -> Any:
    """As `scale`, but refuses blocks that are no power of two."""
    if block & (block - 1):
        raise ValueError(f"block {block} is no power of two")
    return scale(n, 2, block)
