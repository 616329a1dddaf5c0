"""Matrix products of five shapes.

python -m atune tune bench/spaces/gemms.py:SQUARE

The block order varies fastest, because candidates that differ only in it share their work. Annotations name local
values, so their evaluation is not postponed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilelang.language as T

import atune

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from gemm import reference

SHARED_BYTES = 227 * 1024
"""Most shared memory of a block on sm_90 (CUDA C++ Programming Guide, table of compute capabilities)."""
ACCUMULATORS = 256
"""Most registers of a thread for sums. 256 spill already, and more cost the compiler seconds per candidate."""
ORDERS = ["", "row 4", "row 8", "column 8"]
"""Orders of the blocks: by number, or in panels of this many rows or columns of blocks."""


def matmul(
    M: int,
    N: int,
    K: int,
    dtype: str,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 64,
    num_stages: int = 2,
    threads: int = 128,
    policy: str = "Square",
    order: str = "",
) -> Any:
    """C = A @ B^T, accumulated in float32; A is (M, K), B is (N, K). `policy`: how warps share a block's tile."""
    direction, _, panel = (order or "row 1").partition(" ")
    panel_size, reordered, warps = int(panel), order != "", T.GemmWarpPolicy[policy]

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.use_swizzle(panel_size, direction, enable=reordered)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True, policy=warps)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return main


def fits(block_M: int, block_N: int, block_K: int, num_stages: int, threads: int) -> bool:
    """Tell whether all stages' tiles of 16-bit numbers fit in shared memory, and the sums in registers."""
    stages_bytes = 2 * (block_M + block_N) * block_K * max(num_stages, 1)
    return max(stages_bytes, 2 * block_M * block_N) <= SHARED_BYTES and block_M * block_N <= ACCUMULATORS * threads


def divides(block_M: int, block_N: int, threads: int, policy: str) -> bool:
    """Tell whether the policy can divide the tile among warp groups; if not, it fails, or equals the other policy."""
    groups = threads // 128
    if policy == "FullRow":
        return block_M % (64 * groups) == 0
    return groups > 1 and block_N % (8 * groups) == 0


def gives_each_warp_a_part(block_M: int, block_N: int, threads: int) -> bool:
    """Tell whether each warp gets a part of at least 16 rows and 8 columns."""
    return (block_M // 16) * (block_N // 8) >= threads // 32


def gemm(name: str, M: int, N: int, K: int, dtype: str, **axes: Sequence[Any]) -> atune.Workload:
    return atune.Workload(
        matmul,
        atune.Space(**axes, where=[fits, divides if "policy" in axes else gives_each_warp_a_part]),
        arguments={"M": M, "N": N, "K": K, "dtype": dtype},
        reference=reference,
        name=name,
        flops=2.0 * M * N * K,
        bytes=2.0 * (M * K + N * K + M * N),
    )


SQUARE = gemm(
    "gemm_square", 4096, 4096, 4096, "bfloat16",
    block_M=[64, 128, 192, 256], block_N=[64, 96, 128, 192, 256], block_K=[32, 64, 128], num_stages=[0, 2, 3, 4],
    threads=[128, 256, 384], policy=["FullRow", "FullCol"], order=ORDERS,
)  # fmt: skip
TALL = gemm(
    "gemm_tall", 32768, 512, 1024, "float16",
    block_M=[64, 128, 256], block_N=[64, 128, 256], block_K=[32, 64, 128], num_stages=[0, 2, 3, 4],
    threads=[128, 256], policy=["FullRow", "FullCol"], order=ORDERS,
)  # fmt: skip
SKINNY = gemm(
    "gemm_skinny", 16, 8192, 8192, "bfloat16",
    block_M=[16, 32, 64], block_N=[32, 64, 128, 256], block_K=[64, 128, 256, 512], num_stages=[0, 1, 2, 3, 4, 5, 6, 8],
    threads=[128, 256],
)  # fmt: skip
# No side is a multiple of any tile, but rows are aligned to 16 bytes, so the tensor memory accelerator can read them.
ODD = gemm(
    "gemm_odd", 1000, 3000, 2000, "bfloat16",
    block_M=[64, 128, 192, 256], block_N=[64, 96, 128, 192], block_K=[32, 64, 128], num_stages=[0, 2, 3, 4],
    threads=[128, 256], policy=["FullRow", "FullCol"], order=["", "row 4"],
)  # fmt: skip
# Rows of 4008 bytes are not aligned.
UNALIGNED = gemm(
    "gemm_unaligned", 1000, 3000, 2004, "float16",
    block_M=[64, 128, 192], block_N=[64, 96, 128, 192], block_K=[32, 64], num_stages=[0, 2, 3, 4],
    threads=[128, 256], policy=["FullRow", "FullCol"], order=ORDERS,
)  # fmt: skip
