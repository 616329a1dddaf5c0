"""Kernels whose layouts tilelang infers: which elements a thread holds, and which thread stores them."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch

import atune

ROWS, COLUMNS = 128, 4


def weighted(rows: int = ROWS) -> Any:
    """Each row of S by the same weights A. Every thread holds the weights; B, made of them, need not be held by all."""

    @T.prim_func
    def main(
        S: T.Tensor((rows, COLUMNS), "float32"),
        A: T.Tensor((COLUMNS,), "float32"),
        out: T.Tensor((rows, COLUMNS), "float32"),
    ):
        with T.Kernel(1, threads=rows):
            held_s = T.alloc_fragment((rows, COLUMNS), "float32")
            held_a = T.alloc_fragment((COLUMNS,), "float32")
            held_b = T.alloc_fragment((rows, COLUMNS), "float32")
            T.copy(A, held_a)
            T.copy(S, held_s)
            for i, j in T.Parallel(rows, COLUMNS):
                held_b[i, j] = held_a[j]
            for i, j in T.Parallel(rows, COLUMNS):
                out[i, j] = held_s[i, j] * held_b[i, j]

    return main


def inputs() -> list[torch.Tensor]:
    return [torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS), torch.arange(1.0, COLUMNS + 1)]


WEIGHTED = atune.Workload(
    weighted, atune.Space(rows=[ROWS]), inputs=inputs, reference=lambda S, A: S * A, name="weighted rows"
)
