"""A matrix product with 4-bit weights, written for tilelang's autotuner. Only an import line differs.

python examples/compat/dequant_gemm.py
"""

from typing import Any

import tilelang
import tilelang.language as T
import torch

from atune.compat.tilelang import autotune, set_autotune_inputs  # was: from tilelang.autotuner import …

M, N, K = 1024, 4096, 4096


def unpacked(B: torch.Tensor) -> torch.Tensor:
    """Return the whole numbers -8 to 7 that `B`, two a byte, holds; the low half comes first."""
    return torch.stack([B & 15, B >> 4], dim=2).reshape(B.shape[0], -1).to(torch.float16) - 8


def reference(A: torch.Tensor, B: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return ((A @ unpacked(B).T).float() * scales).half()


@autotune(
    configs=[
        {"block_M": block_M, "block_N": block_N, "block_K": block_K, "num_stages": num_stages}
        for block_M, block_N in [(64, 64), (128, 64), (128, 128)]
        for block_K in (64, 128)
        for num_stages in (1, 2)
    ],
    warmup=3,
    rep=20,
    timeout=60,
    ref_prog=reference,
    cache_input_tensors=True,
)
@tilelang.jit(out_idx=[-1], target="cuda")
def dequant_matmul(
    M: int, N: int, K: int, block_M: int = 64, block_N: int = 64, block_K: int = 64, num_stages: int = 1
) -> Any:
    """C = A @ (unpacked B)^T × scales in float16; B is (N, K / 2) bytes, `scales` one a row of B."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K // 2), "uint8"),
        scales: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            packed_shared = T.alloc_shared((block_N, block_K // 2), "uint8")
            packed = T.alloc_fragment((block_N, block_K // 2), "uint8")
            B_local = T.alloc_fragment((block_N, block_K), "float16")
            B_shared = T.alloc_shared((block_N, block_K), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for ko in T.Pipelined(K // block_K, num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K // 2], packed_shared)
                T.copy(packed_shared, packed)
                for i, j in T.Parallel(block_N, block_K):
                    half = (T.cast(packed[i, j // 2], "int32") >> (j % 2 * 4)) & 15
                    B_local[i, j] = T.cast(half - 8, "float16")
                T.copy(B_local, B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] *= scales[bx * block_N + j]
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def arguments() -> tuple[Any, ...]:
    return M, N, K


def inputs() -> list[torch.Tensor]:
    A = torch.randn(M, K, device="cuda").half()
    B = torch.randint(0, 256, (N, K // 2), device="cuda", dtype=torch.uint8)
    return [A, B, torch.rand(N, device="cuda") * 0.01 + 0.005]


def tuned() -> Any:
    with set_autotune_inputs(*inputs()):
        return dequant_matmul(*arguments())


if __name__ == "__main__":
    kernel, tensors = tuned(), inputs()
    torch.testing.assert_close(kernel(*tensors), reference(*tensors), rtol=1e-2, atol=1e-2)
    print(f"{kernel.latency:.4f} ms with {kernel.config}; torch {kernel.ref_latency:.4f} ms")
