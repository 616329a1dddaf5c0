"""Root mean square normalisation of rows: rows per block, threads, use of shared memory, and width of accesses.

python -m atune tune bench/spaces/rms_norms.py:WIDE

After B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, https://arxiv.org/abs/1910.07467, equation 4.
Annotations name local values, so their evaluation is not postponed.
"""

from typing import Any

import tilelang.language as T
import torch
from tilelang import tvm

import atune

ROWS, COLUMNS = 16384, 4096
EPSILON = 1e-6
ELEMENTS = 64
"""Most elements of a thread, which holds each twice in float32."""


def rms_norm(
    rows: int, columns: int, block_rows: int = 1, threads: int = 128, staged: bool = False, width: int = 8
) -> Any:
    """Y[r, :] = X[r, :] / sqrt(mean(X[r, :]^2) + EPSILON) * W in bfloat16, in float32; a block holds whole rows.

    `staged`: rows come through shared memory. `width`: elements that a thread reads or writes at once.
    """
    at_once = tvm.tirx.IntImm("int32", width)

    @T.prim_func
    def main(
        X: T.Tensor((rows, columns), "bfloat16"),
        W: T.Tensor((columns,), "bfloat16"),
        Y: T.Tensor((rows, columns), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(rows, block_rows), threads=threads) as bx:
            tile = T.alloc_shared((block_rows, columns), "bfloat16")
            x = T.alloc_fragment((block_rows, columns), "float32")
            squares = T.alloc_fragment((block_rows, columns), "float32")
            scale = T.alloc_fragment((block_rows,), "float32")
            if staged:
                T.copy(X[bx * block_rows, 0], tile)
                for i, j in T.Parallel(block_rows, columns, coalesced_width=at_once):
                    x[i, j] = T.cast(tile[i, j], "float32")
            else:
                for i, j in T.Parallel(block_rows, columns, coalesced_width=at_once):
                    x[i, j] = T.cast(X[bx * block_rows + i, j], "float32")
            for i, j in T.Parallel(block_rows, columns):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_rows):
                scale[i] = T.rsqrt(scale[i] / columns + EPSILON)
            for i, j in T.Parallel(block_rows, columns):
                x[i, j] = x[i, j] * scale[i] * T.cast(W[j], "float32")
            for i, j in T.Parallel(block_rows, columns, coalesced_width=at_once):
                Y[bx * block_rows + i, j] = x[i, j]

    return main


def reference(X: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    x = X.float()
    return (x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPSILON) * W.float()).bfloat16()


WIDE = atune.Workload(
    rms_norm,
    atune.Space(
        block_rows=[1, 2, 4, 8],
        threads=[64, 128, 256, 512],
        staged=[False, True],
        width=[1, 2, 4, 8],
        where=lambda block_rows, threads: block_rows * COLUMNS <= ELEMENTS * threads,
    ),
    arguments={"rows": ROWS, "columns": COLUMNS},
    reference=reference,
    name="rms_norm",
    bytes=4.0 * ROWS * COLUMNS,
)
