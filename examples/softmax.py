"""A row-wise softmax on a CUDA GPU, tuned over the rows per block and the threads.

atune tune examples/softmax.py:WORKLOAD
python examples/softmax.py
"""

from __future__ import annotations

from typing import Any

import anyio
import tilelang.language as T
import torch

import atune
from atune.reporting.export import table

ROWS, COLUMNS = 8192, 2048


def softmax(rows: int, columns: int, block_rows: int = 1, threads: int = 128) -> Any:
    """Y[r, :] = exp(X[r, :] - max) / sum in float16, computed in float32; a block holds whole rows."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block_rows), threads=threads) as bx:
            x = T.alloc_fragment((block_rows, columns), "float32")
            largest = T.alloc_fragment((block_rows,), "float32")
            total = T.alloc_fragment((block_rows,), "float32")
            T.copy(X[bx * block_rows, 0], x)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(block_rows, columns):
                x[i, j] = T.exp(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block_rows, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * block_rows, 0])

    return main


def reference(X: torch.Tensor) -> torch.Tensor:
    return torch.softmax(X.float(), dim=-1).half()


WORKLOAD = atune.Workload(
    softmax,
    atune.Space(
        block_rows=[1, 2, 4, 8],
        threads=[64, 128, 256, 512],
        where=lambda block_rows, threads: block_rows * 64 <= threads * 4,
    ),
    arguments={"rows": ROWS, "columns": COLUMNS},
    reference=reference,
    name="softmax",
)


async def main() -> None:
    result = await atune.tune(WORKLOAD, target="cuda")
    print(table(result))
    X = torch.randn(ROWS, COLUMNS, device="cuda").half()
    torch.testing.assert_close(result.kernel(X), reference(X), rtol=1e-2, atol=1e-3)


if __name__ == "__main__":
    anyio.run(main)
