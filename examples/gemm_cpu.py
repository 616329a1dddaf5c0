"""A tiled float32 matrix product on the CPU: 36 tile shapes, checked against torch.

atune tune examples/gemm_cpu.py:WORKLOAD
python examples/gemm_cpu.py
"""

from __future__ import annotations

from typing import Any

import anyio
import tilelang.language as T
import torch

import atune
from atune.reporting.export import table

M = N = K = 256


def matmul(M: int, N: int, K: int, block_M: int = 16, block_N: int = 16, block_K: int = 16) -> Any:
    """C = A @ B in float32; each block keeps its tile of C in a local array."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            tile = T.alloc_local((block_M, block_N), "float32")
            for i, j in T.grid(block_M, block_N):
                tile[i, j] = 0.0
            for ko in T.serial(T.ceildiv(K, block_K)):
                for i, k, j in T.grid(block_M, block_K, block_N):
                    tile[i, j] += A[by * block_M + i, ko * block_K + k] * B[ko * block_K + k, bx * block_N + j]
            for i, j in T.grid(block_M, block_N):
                C[by * block_M + i, bx * block_N + j] = tile[i, j]

    return main


def reference(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B


WORKLOAD = atune.Workload(
    matmul,
    atune.Space(block_M=[4, 16, 64], block_N=[4, 16, 64, 128], block_K=[4, 16, 64]),
    arguments={"M": M, "N": N, "K": K},
    reference=reference,
    name="gemm_cpu",
)


async def main() -> None:
    result = await atune.tune(WORKLOAD, target="c")
    print(table(result))
    A, B = torch.randn(M, K), torch.randn(K, N)
    torch.testing.assert_close(result.kernel(A, B), A @ B, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    anyio.run(main)
