"""The kernel of TileLang's pull request 1559, whose layouts inference chooses, or an axis."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch

import atune
from atune import layout

ROWS, COLUMNS = 128, 4


def pairs(held: Any, threads: int) -> Any:
    """Two threads hold the same two rows."""
    return T.Fragment(held.shape, forward_fn=lambda i, j, copy: (i // 2 * 2 + copy, i % 2 * 4 + j), replicate=2)


OWN = {
    "rows": lambda held, threads: T.Fragment(held.shape, forward_fn=lambda i, j: (i, j)),
    "pairs": pairs,
    "plain": lambda held, threads: T.Layout(held.shape, lambda i, j: [i * COLUMNS + j]),
}


def weighted(rows: int = ROWS, held: str = layout.COMPILER, loop: str = layout.COMPILER) -> Any:
    """Each row of S by the same weights A. Every thread holds the weights; B, made of them, need not be held by all."""

    @T.prim_func
    def main(
        S: T.Tensor((rows, COLUMNS), "float32"),
        A: T.Tensor((COLUMNS,), "float32"),
        out: T.Tensor((rows, COLUMNS), "float32"),
    ):
        with T.Kernel(1, threads=rows):
            S_frag = T.alloc_fragment((rows, COLUMNS), "float32")
            A_frag = T.alloc_fragment((COLUMNS,), "float32")
            B_frag = T.alloc_fragment((rows, COLUMNS), "float32")
            layout.hold("replicated", A_frag, threads=rows)
            layout.hold(held, B_frag, threads=rows, **OWN)
            T.copy(A, A_frag)
            T.copy(S, S_frag)
            for i, j in layout.parallel(loop, rows, COLUMNS, threads=rows):
                B_frag[i, j] = A_frag[j]
            for i, j in T.Parallel(rows, COLUMNS):
                out[i, j] = S_frag[i, j] * B_frag[i, j]

    return main


def inputs() -> list[torch.Tensor]:
    return [torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS), torch.arange(1.0, COLUMNS + 1)]


WEIGHTED = atune.Workload(
    weighted, atune.Space(rows=[ROWS]), inputs=inputs, reference=lambda S, A: S * A, name="weighted rows"
)
