"""A float32 matrix product that tunes itself when it is called with new shapes, on the CPU.

python examples/decorated_cpu.py
"""

from __future__ import annotations

import tilelang
import tilelang.language as T
import torch

import atune


@atune.autotune(
    space={"block_M": [8, 32, 64], "block_N": [16, 64]},
    where=lambda block_M, block_N, M, N: M % block_M == 0 and N % block_N == 0,
    reference=lambda A, B: A @ B,
    tuning="quick",
)
@tilelang.jit(target="c", execution_backend="cython")
def matmul(A, B, block_M: int = 32, block_N: int = 64):
    """Return A @ B."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], T.float32]
    B: T.Tensor[[K, N], T.float32]
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
        C_local = T.alloc_local((block_M, block_N), "float32")
        for i, j in T.grid(block_M, block_N):
            C_local[i, j] = 0.0
        for k in T.serial(K):
            for i, j in T.grid(block_M, block_N):
                C_local[i, j] += A[by * block_M + i, k] * B[k, bx * block_N + j]
        for i, j in T.grid(block_M, block_N):
            C[by * block_M + i, bx * block_N + j] = C_local[i, j]
    return C


def main() -> None:
    for M, N, K in ((64, 64, 64), (128, 192, 64)):
        A, B = torch.randn(M, K), torch.randn(K, N)
        torch.testing.assert_close(matmul(A, B), A @ B, rtol=1e-4, atol=1e-3)  # the first call tunes
        torch.testing.assert_close(matmul(A, B), A @ B, rtol=1e-4, atol=1e-3)  # the second uses the tuned kernel
        result = matmul.tune(A, B)
        print(f"{M}×{N}×{K}: {result.best_config}, {result.latency_ms:.4f} ms, {result.total} candidates")


if __name__ == "__main__":
    main()
