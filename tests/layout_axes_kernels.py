"""Kernels whose layouts are axes."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune
from atune import layout


def near(held: Any, threads: int) -> Any:
    """Neighbouring threads hold the same element."""
    copies = threads // held.shape[0]
    return T.Fragment(held.shape, forward_fn=lambda i, copy: (i * copies + copy, 0), replicate=copies)


def far(held: Any, threads: int) -> Any:
    """Neighbouring threads hold neighbouring elements."""
    size = held.shape[0]
    return T.Fragment(held.shape, forward_fn=lambda i, copy: (copy * size + i, 0), replicate=threads // size)


OWN = {"near": near, "far": far}


def four(held: str) -> Any:
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((4,), "float32")
            layout.hold(held, a, threads=128, **OWN)
            T.copy(A, a)
            T.copy(a, B)

    return main


HELD = atune.Workload(four, atune.Space(held=layout.fragments(*OWN, "missing")), name="held")
