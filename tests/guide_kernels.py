"""Kernels of the guide's tests, for the CPU and, the same functions, for a GPU."""

# Annotations are evaluated: they name local values.

import itertools
from collections.abc import Iterator
from typing import Any

import tilelang.language as T
import torch
from workloads import doubled as doubled


def product(
    M: int,
    N: int,
    K: int,
    block_M: int = 16,
    block_N: int = 16,
    block_K: int = 16,
    num_stages: int = 2,
    threads: int = 128,
    gpu: bool = False,
    dtype: Any = "float32",
) -> Any:
    """C = A @ B, one tile of C a block, in tensor cores' tiles on a GPU; on the CPU the tiles of C alone count."""
    out = "float32"
    if gpu:

        @T.prim_func
        def on_gpu(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), out)):
            with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
                A_shared = T.alloc_shared((block_M, block_K), dtype)
                B_shared = T.alloc_shared((block_K, block_N), dtype)
                C_local = T.alloc_fragment((block_M, block_N), "float32")
                T.clear(C_local)
                for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                    T.copy(A[by * block_M, ko * block_K], A_shared)
                    T.copy(B[ko * block_K, bx * block_N], B_shared)
                    T.gemm(A_shared, B_shared, C_local)
                T.copy(C_local, C[by * block_M, bx * block_N])

        return on_gpu

    @T.prim_func
    def on_cpu(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            for i, j in T.grid(block_M, block_N):
                C[by * block_M + i, bx * block_N + j] = 0.0
            for k, i, j in T.grid(K, block_M, block_N):
                C[by * block_M + i, bx * block_N + j] += A[by * block_M + i, k] * B[k, bx * block_N + j]

    return on_cpu


def scaled(n: Any, factor: float = 2.0, block: int = 16, threads: Any = None) -> Any:
    """B = A * factor."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * factor

    return main


def picky(block: int, n: int = 64) -> Any:
    """As `scaled`, but refuses blocks that are no power of two."""
    if block & (block - 1):
        raise ValueError(f"block {block} is no power of two")
    return scaled(n, 2.0, block)


def few_blocks(n: int, factor: float, blocks: int, threads: Any = 256) -> Any:
    """B = A * factor by so many blocks, of 1024 elements at a time: with few of them most of the device is idle."""
    share = n // blocks // 1024

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(blocks, threads=threads) as bx:
            for k in T.serial(share):
                for i in T.Parallel(1024):
                    B[(bx * share + k) * 1024 + i] = A[(bx * share + k) * 1024 + i] * factor

    return main


def typed(dtype: str, block: int = 16, threads: Any = None) -> Any:
    """B = A, of 64 elements."""

    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype)):
        with T.Kernel(T.ceildiv(64, block), threads=threads) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i]

    return main


def tiles(M: int, N: int, K: int, gpu: bool = False, **_: Any) -> Iterator[dict[str, Any]]:
    """Yield the guide's 32 configurations; on the CPU 8 of smaller tiles."""
    sizes, deep = ((64, 128), (32, 64)) if gpu else ((16, 32), (16, 32))
    for m, n, k in itertools.product(sizes, sizes, deep):
        for stages, threads in itertools.product((2, 3), (128, 256)) if gpu else [(2, 128)]:
            if M % m == 0 and N % n == 0:
                yield {"block_M": m, "block_N": n, "block_K": k, "num_stages": stages, "threads": threads}


def product_of(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A.float() @ B.float()
