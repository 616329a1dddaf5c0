"""A bf16 matrix product, written for tilelang's autotuner. Only an import line differs.

python examples/compat/gemm.py
"""

from typing import Any

import tilelang
import tilelang.language as T
import torch

from atune.compat.tilelang import autotune  # was: from tilelang.autotuner import autotune

M, N, K = 4096, 4096, 4096


def configs(M: int, N: int, K: int) -> list[dict[str, Any]]:
    return [
        {"block_M": block_M, "block_N": block_N, "block_K": 64, "num_stages": num_stages, "threads": threads}
        for block_M, block_N in [(64, 128), (128, 128), (128, 256)]
        for num_stages in (2, 3)
        for threads in (128, 256)
    ]


def reference(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B.T


@autotune(configs=configs, warmup=3, rep=20, timeout=60, ref_prog=reference, cache_input_tensors=True)
@tilelang.jit(out_idx=[-1], target="cuda")
def matmul(
    M: int,
    N: int,
    K: int,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 64,
    num_stages: int = 2,
    threads: int = 128,
) -> Any:
    """C = A @ B^T, accumulated in float32; A is (M, K), B is (N, K)."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K), "bfloat16"), C: T.Tensor((M, N), "bfloat16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
            B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def arguments() -> tuple[Any, ...]:
    return M, N, K


def inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K, device="cuda").bfloat16(), torch.randn(N, K, device="cuda").bfloat16()]


def tuned() -> Any:
    return matmul(*arguments())


if __name__ == "__main__":
    kernel, tensors = tuned(), inputs()
    torch.testing.assert_close(kernel(*tensors), reference(*tensors), rtol=2e-2, atol=1.0)
    print(f"{kernel.latency:.4f} ms with {kernel.config}; torch {kernel.ref_latency:.4f} ms")
