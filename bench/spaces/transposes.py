"""A transpose, which is bound by memory: tiles, threads, padding of the tile in shared memory, and width of reads.

python -m atune tune bench/spaces/transposes.py:LARGE

Annotations name local values, so their evaluation is not postponed.
"""

from typing import Any

import tilelang.language as T
import torch
from tilelang import tvm

import atune

ROWS = COLUMNS = 8192


def transpose(
    rows: int, columns: int, block_M: int = 64, block_N: int = 64, threads: int = 128, padding: int = 0, width: int = 1
) -> Any:
    """Y = X^T in float16. `padding`: elements between a tile's rows. `width`: elements that a thread reads at once."""
    at_once = tvm.tirx.IntImm("int32", width)

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((columns, rows), "float16")):
        with T.Kernel(T.ceildiv(columns, block_N), T.ceildiv(rows, block_M), threads=threads) as (bx, by):
            tile = T.alloc_shared((block_M, block_N + padding), "float16")
            for i, j in T.Parallel(block_M, block_N, coalesced_width=at_once):
                tile[i, j] = X[by * block_M + i, bx * block_N + j]
            for j, i in T.Parallel(block_N, block_M):
                Y[bx * block_N + j, by * block_M + i] = tile[i, j]

    return main


def reference(X: torch.Tensor) -> torch.Tensor:
    return X.T.contiguous()


LARGE = atune.Workload(
    transpose,
    atune.Space(
        block_M=[32, 64, 128],
        block_N=[32, 64, 128],
        threads=[128, 256, 512],
        padding=[0, 2, 8],
        width=[1, 2, 4, 8],
        where=lambda padding, width: padding % width == 0,  # so that rows of the tile are aligned to stores
    ),
    arguments={"rows": ROWS, "columns": COLUMNS},
    reference=reference,
    rtol=0.0,
    atol=0.0,
    name="transpose",
    bytes=4.0 * ROWS * COLUMNS,
)
