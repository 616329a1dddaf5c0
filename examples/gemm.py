"""A bf16 matrix product on a CUDA GPU: 288 configurations, checked against torch.

atune tune examples/gemm.py:WORKLOAD
python examples/gemm.py
"""

from __future__ import annotations

from typing import Any

import anyio
import tilelang.language as T
import torch

import atune
from atune.reporting.export import table

M = N = K = 4096


def matmul(
    M: int,
    N: int,
    K: int,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 32,
    num_stages: int = 2,
    threads: int = 128,
    swizzle: bool = False,
) -> Any:
    """C = A @ B^T in bfloat16, accumulated in float32; A is (M, K), B is (N, K)."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K), "bfloat16"), C: T.Tensor((M, N), "bfloat16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
            B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            C_shared = T.alloc_shared((block_M, block_N), "bfloat16")
            T.use_swizzle(panel_size=10, enable=swizzle)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return main


def reference(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B.T


WORKLOAD = atune.Workload(
    matmul,
    atune.Space(
        block_M=[64, 128, 256],
        block_N=[64, 128, 256],
        block_K=[32, 64],
        num_stages=[0, 1, 2, 3],
        threads=[128, 256],
        swizzle=[True, False],
    ),
    arguments={"M": M, "N": N, "K": K},
    reference=reference,
    name="gemm",
)


async def main() -> None:
    result = await atune.tune(WORKLOAD, target="cuda")
    print(table(result))
    A, B = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(2))
    torch.testing.assert_close(result.kernel(A, B), A @ B.T, rtol=2e-2, atol=1.0)


if __name__ == "__main__":
    anyio.run(main)
