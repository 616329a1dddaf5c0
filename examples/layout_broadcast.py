"""Rows of X scaled by s on a CUDA GPU: the layout of elements over threads decides the time, and depends on the shape.

atune tune examples/layout_broadcast.py:WIDE      # 4096 columns
atune tune examples/layout_broadcast.py:UNEVEN    # 2560 columns
python examples/layout_broadcast.py

By default, tilelang derives the loop's layout from `s`, so that many threads hold, compute and store the same elements.
"""

from __future__ import annotations

from typing import Any

import anyio
import tilelang.language as T
import torch

import atune
from atune import layout
from atune.reporting.export import table

ROWS = 4096


def scaled(
    rows: int,
    columns: int,
    block_rows: int = 4,
    threads: int = 256,
    held: str = layout.COMPILER,
    loop: str = layout.COMPILER,
    coalesced: int = 0,
) -> Any:
    """Out[r, c] = X[r, c] * s[r], s in float32; a block holds `block_rows` whole rows, and their s in a fragment."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, columns), "float16"),
        S: T.Tensor((rows,), "float32"),
        Out: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(T.ceildiv(rows, block_rows), threads=threads) as block:
            s = T.alloc_fragment((block_rows,), "float32")
            layout.hold(held, s, threads=threads)
            T.copy(S[block * block_rows], s)
            for r, c in layout.parallel(loop, block_rows, columns, threads=threads, coalesced_width=coalesced):
                Out[block * block_rows + r, c] = X[block * block_rows + r, c] * s[r]

    return main


def reference(X: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
    return (X * S[:, None]).to(X.dtype)


def workload(columns: int) -> atune.Workload:
    """Return the workload for this number of columns, with layouts among its axes."""
    return atune.Workload(
        scaled,
        atune.Space(
            block_rows=[4, 2],
            threads=[256, 128, 64],
            held=layout.fragments(),
            loop=layout.loops(2, 8),
            coalesced=[0, 2],
        ),
        arguments={"rows": ROWS, "columns": columns},
        reference=reference,
        name=f"scaled rows of {columns}",
        bytes=4 * ROWS * (columns + 1),
    )


WIDE = workload(4096)
UNEVEN = workload(2560)


async def main() -> None:
    for work, columns in ((WIDE, 4096), (UNEVEN, 2560)):
        result = await atune.tune(work, target="cuda")
        print(table(result))
        X, S = torch.randn(ROWS, columns, device="cuda").half(), torch.randn(ROWS, device="cuda")
        torch.testing.assert_close(result.kernel(X, S), reference(X, S))


if __name__ == "__main__":
    anyio.run(main)
