"""Workloads of one kernel and several problems, for the CPU."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch
from set_kernels import any_size

import atune


def matmul(M: int, N: int, block: int = 32) -> Any:
    @T.prim_func
    def main(A: T.Tensor((M, 32), "float32"), B: T.Tensor((32, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, block)) as bx:
            for i, j in T.grid(block, N):
                C[bx * block + i, j] = 0.0
                for k in T.serial(32):
                    C[bx * block + i, j] += A[bx * block + i, k] * B[k, j]

    return main


def other(M: int, N: int, block: int = 32) -> Any:
    return matmul(M, N, block)


def double(n: int, block: int = 64) -> Any:
    """B = 2 A, for every size: `n` is not in the code."""
    return any_size(block)


def problem(M: int, kernel: Any = matmul) -> atune.Workload:
    return atune.Workload(kernel, {"block": [16, 32]}, arguments={"M": M, "N": 16}, out_idx=-1)


SMALL, LARGE, OTHER = problem(32), problem(64), problem(96, other)
EVEN = atune.Workload(
    double,
    atune.Space(block=[16, 64], where=lambda n, block: n % block == 0),
    arguments={"n": 64},
    inputs=lambda n: [torch.randn(n)],
    out_idx=-1,
)
"""Tuned for sizes that its constraint takes."""
DOUBLE = atune.Workload(double, {"block": [16, 64]}, arguments={"n": 64}, out_idx=-1)
