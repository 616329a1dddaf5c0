"""Kernels whose problems are tuned as sets; loaded by the workers through ``FILE.py:NAME``."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch
import workloads
from workloads import doubled

import atune

ROWS = 16 << 20
"""The rows of `ANY`, unless a problem gives others."""


def scale(n: int, block: int = 64) -> Any:
    """B = 2 A, one size."""
    return workloads.scale(n, 2, block)


def free(n, block: int = 64):  # type: ignore[no-untyped-def]
    """`scale`, which does not say what `n` is."""
    return scale(n, block)


def any_size(block: int = 64, rows: int = 0) -> Any:
    """B = 2 A, every size; `rows` is not in the code."""
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                if bx * block + i < n:
                    B[bx * block + i] = A[bx * block + i] * 2

    return main


def random_rows(rows: int) -> list[torch.Tensor]:
    return [torch.randn(rows)]


SCALE = atune.Workload(
    scale, atune.Space(block=[16, 64]), arguments={"n": 256}, reference=doubled, flops=lambda n: n, name="scale"
)
ANY = atune.Workload(
    any_size, atune.Space(block=[16, 64]), arguments={"rows": ROWS}, inputs=random_rows, reference=doubled, name="any"
)
FREE = atune.Workload(free, atune.Space(block=[16, 64]), arguments={"n": 256}, reference=doubled, name="free")


def moody(n: int, mode: str, block: int = 64) -> Any:
    """`scale`, with an argument that each problem must give."""
    return scale(n, block)


BARE = atune.Workload(moody, atune.Space(block=[16, 64]), reference=doubled, name="bare")
MOODY = atune.Workload(
    moody, atune.Space(block=[16, 64]), arguments={"n": 256, "mode": "calm"}, reference=doubled, name="moody"
)
