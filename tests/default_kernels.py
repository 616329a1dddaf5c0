"""Kernels whose default is all that works, or the fastest; loaded by the workers through ``FILE.py:NAME``."""

from __future__ import annotations

from typing import Any

import tilelang
import tilelang.language as T
from workloads import doubled

import atune


def repeated(n: int, times: int = 1) -> Any:
    """B = 2 A, written `times` times: the default is far the fastest."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1):
            for r in T.serial(times):
                for i in T.serial(n):
                    B[i] = A[(i + r * n) % n] * 2

    return main


def alone(n: int, times: int = 1) -> Any:
    """`repeated`, which works by its default alone, and not at all where n is 64."""
    if times != 1 or n == 64:
        raise RuntimeError(f"no kernel for {times} times")
    return repeated(n, times)


def more(times: int) -> bool:
    return times > 10


TIMES = {"times": [40, 80]}
SIZE = {"arguments": {"n": 256}, "reference": doubled}
LISTED = atune.Workload(repeated, atune.Space(TIMES), name="repeated", **SIZE)
REFUSED = atune.Workload(repeated, atune.Space(TIMES, where=more), name="repeated", **SIZE)
ALONE = atune.Workload(alone, atune.Space(TIMES), name="alone", **SIZE)
ALONE_REFUSED = atune.Workload(alone, atune.Space(TIMES, where=more), name="alone", **SIZE)

repeated_jit = tilelang.jit(repeated, out_idx=[-1], target="c", execution_backend="cython")
alone_jit = tilelang.jit(alone, out_idx=[-1], target="c", execution_backend="cython")
