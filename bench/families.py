"""Five families of kernels with five problems each. No constraint leaves out candidates that cannot run.

python -m atune tune bench/families.py:KDA_1_1024_32

The kernels follow tilelang's examples. This file does not postpone the evaluation of annotations, because they name
local values.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilelang.language as T
import torch
from torch.nn.functional import normalize, scaled_dot_product_attention

import atune

sys.path.insert(0, str(Path(__file__).parent))
from attention import attention
from spaces.gemms import matmul

FP8 = "float8_e4m3fn"
CHUNK = 16
"""Tokens of a chunk of KDA whose products are computed directly."""


# ---- matrix products


def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return (A.float() @ B.float().T).to(A.dtype) if A.itemsize == 1 else A @ B.T


def operands(M: int, N: int, K: int, dtype: str) -> list[torch.Tensor]:
    """Return random operands whose products stay below the largest number of FP8, 448."""
    return [(torch.randn(rows, K) / 2).to(getattr(torch, dtype)) for rows in (M, N)]


def gemm(M: int, N: int, K: int, dtype: str, axes: dict[str, Sequence[Any]]) -> atune.Workload:
    family, element_bytes = ("fp8", 1) if dtype == FP8 else ("gemm", 2)
    return atune.Workload(
        matmul,
        axes,
        arguments={"M": M, "N": N, "K": K, "dtype": dtype},
        inputs=operands,
        reference=product,
        rtol=0.13 if dtype == FP8 else None,  # neighbours in FP8 differ by up to 1/8
        name=f"{family}_{M}_{N}_{K}",
        flops=2.0 * M * N * K,
        bytes=float(element_bytes * (M * K + N * K + M * N)),
    )


SIZES = (256, 4096, 4096), (1024, 4096, 4096), (1024, 4096, 14336), (4096, 4096, 4096), (4096, 14336, 4096)
GEMM_AXES: dict[str, Sequence[Any]] = {
    "block_M": [64, 128, 256], "block_N": [32, 64, 96, 128, 192, 256], "block_K": [32, 64], "num_stages": [0, 1, 2, 3],
    "threads": [128, 256], "order": ["", "row 10"],
}  # fmt: skip
FP8_AXES: dict[str, Sequence[Any]] = {
    "block_M": [64, 128, 256], "block_N": [64, 128, 256], "block_K": [32, 64, 128], "num_stages": range(8),
    "threads": [128, 256],
}  # fmt: skip


# ---- grouped products


def grouped_matmul(
    sizes: Sequence[int], N: int, K: int, block_M: int = 64, block_N: int = 128, block_K: int = 64,
    num_stages: int = 2, threads: int = 128,
) -> Any:  # fmt: skip
    """Multiply each group of rows of A, (sum of sizes, K), by its own matrix of B, (groups, K, N)."""
    groups, rows, dtype = len(sizes), sum(sizes), "float16"
    row_blocks = sum(-(-size // block_M) for size in sizes)

    @T.prim_func
    def main(
        A: T.Tensor((rows, K), dtype),
        B: T.Tensor((groups, K, N), dtype),
        group_sizes: T.Tensor((groups,), "int32"),
        offsets: T.Tensor((groups,), "int32"),
        padded_offsets: T.Tensor((groups,), "int32"),
        C: T.Tensor((rows, N), dtype),
    ):
        with T.Kernel(row_blocks, T.ceildiv(N, block_N), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            group = T.alloc_var("int32")
            group = 0
            for i in range(groups):
                group = T.if_then_else(bx * block_M >= padded_offsets[i], i, group)
            first = bx * block_M - padded_offsets[group]
            start = offsets[group] + first
            left = T.max(0, T.min(block_M, group_sizes[group] - first))
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[start : start + block_M, ko * block_K : (ko + 1) * block_K], A_shared)
                T.copy(B[group, ko * block_K : (ko + 1) * block_K, by * block_N : (by + 1) * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                if i < left:
                    C[start + i, by * block_N + j] = C_local[i, j]

    return main


def grouped_inputs(sizes: Sequence[int], N: int, K: int) -> list[torch.Tensor]:
    starts = [sum(sizes[:group]) for group in range(len(sizes))]
    padded = [sum(-(-size // 64) * 64 for size in sizes[:group]) for group in range(len(sizes))]
    tables = [torch.tensor(numbers, dtype=torch.int32) for numbers in (sizes, starts, padded)]
    return [torch.randn(sum(sizes), K).half(), torch.randn(len(sizes), K, N).half(), *tables]


def grouped(sizes: list[int], N: int, K: int) -> atune.Workload:
    def product(A: torch.Tensor, B: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return torch.cat([part @ matrix for part, matrix in zip(A.split(sizes), B, strict=True)])

    return atune.Workload(
        grouped_matmul,
        atune.Space(block_M=[64], block_N=[32, 64, 96, 128, 192, 256], block_K=[16, 32, 64, 128], num_stages=range(8)),
        arguments={"sizes": sizes, "N": N, "K": K},
        inputs=grouped_inputs,
        reference=product,
        name=f"grouped_{len(sizes)}_{sum(sizes)}_{N}_{K}",
        flops=2.0 * sum(sizes) * N * K,
        bytes=2.0 * (sum(sizes) * (K + N) + len(sizes) * K * N),
    )


# ---- attention


def attention_forward(batch: int, length: int, heads: int, width: int, causal: bool) -> atune.Workload:
    return atune.Workload(
        attention,
        atune.Space(block_M=[64, 128, 256], block_N=[16, 32, 64, 128, 256], num_stages=range(8), threads=[128, 256]),
        arguments={"batch": batch, "length": length, "heads": heads, "width": width, "causal": causal},
        reference=lambda Q, K, V: scaled_dot_product_attention(Q, K, V, is_causal=causal),
        atol=0.016,  # for sums that nearly cancel
        name=f"attention_{batch}_{length}_{heads}_{width}{'_causal' if causal else ''}",
        flops=4.0 * batch * heads * length**2 * width / (2 if causal else 1),
        bytes=8.0 * batch * heads * length * width,
    )


# ---- the chunks of KDA


def kda_chunk(
    batch: int, length: int, heads: int, width: int, block_H: int = 2, num_stages: int = 2, threads: int = 128
) -> Any:
    """Products of a token with the tokens of its chunk up to itself, weighted by the gates' decay between both.

    A[i, j] = sum_d q_i k_j 2^(g_i - g_j), scaled, and L[i, j] = beta_i sum_d k_i k_j 2^(g_i - g_j) for j < i. A block
    has one token, and `block_H` heads.
    """
    shape, products, dtype = (batch, length, heads, width), (batch, length, heads, CHUNK), "bfloat16"
    scale = 1 / math.sqrt(width)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        G: T.Tensor(shape, "float32"),
        beta: T.Tensor((batch, length, heads), dtype),
        A: T.Tensor(products, "float32"),
        L: T.Tensor(products, "float32"),
    ):
        with T.Kernel(T.ceildiv(heads, block_H), batch * length, threads=threads) as (bx, by):
            Kj_shared = T.alloc_shared((block_H, width), dtype)
            Gj_shared = T.alloc_shared((block_H, width), "float32")
            q = T.alloc_fragment((block_H, width), "float32")
            k = T.alloc_fragment((block_H, width), "float32")
            g = T.alloc_fragment((block_H, width), "float32")
            qk = T.alloc_fragment((block_H, width), "float32")
            kk = T.alloc_fragment((block_H, width), "float32")
            a = T.alloc_fragment((block_H,), "float32")
            l = T.alloc_fragment((block_H,), "float32")
            bz, token, head = by // length, by % length, bx * block_H

            for h, d in T.Parallel(block_H, width):
                q[h, d] = Q[bz, token, head + h, d] * scale
                k[h, d] = K[bz, token, head + h, d]
                g[h, d] = G[bz, token, head + h, d]
            for j in T.Pipelined(token % CHUNK + 1, num_stages=num_stages):
                T.copy(K[bz, token // CHUNK * CHUNK + j, head : head + block_H, :], Kj_shared)
                T.copy(G[bz, token // CHUNK * CHUNK + j, head : head + block_H, :], Gj_shared)
                for h, d in T.Parallel(block_H, width):
                    kk[h, d] = Kj_shared[h, d] * T.exp2(g[h, d] - Gj_shared[h, d])
                for h, d in T.Parallel(block_H, width):
                    qk[h, d] = q[h, d] * kk[h, d]
                    kk[h, d] *= k[h, d]
                T.reduce_sum(qk, a, dim=1)
                T.reduce_sum(kk, l, dim=1)
                for h in T.Parallel(block_H):
                    A[bz, token, head + h, j] = a[h]
                    L[bz, token, head + h, j] = T.if_then_else(j < token % CHUNK, l[h] * beta[bz, token, head + h], 0)

    return main


def kda_inputs(batch: int, length: int, heads: int, width: int) -> list[torch.Tensor]:
    """Return queries, keys, the gates' logarithms summed over each chunk, and beta."""
    shape = (batch, length, heads, width)
    steps = -torch.rand(batch, length // CHUNK, CHUNK, heads, width)
    Q, K = (normalize(torch.randn(shape), dim=-1).bfloat16() for _ in "QK")
    return [Q, K, steps.cumsum(2).reshape(shape), torch.rand(shape[:3]).bfloat16()]


def kda_products(Q: torch.Tensor, K: torch.Tensor, G: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, k, g, b = (tensor.float().unflatten(1, (-1, CHUNK)) for tensor in (Q, K, G, beta))
    A, L = (q.new_zeros((*q.shape[:-1], CHUNK)) for _ in "AL")
    for j in range(CHUNK):
        decayed = k[:, :, j : j + 1] * torch.exp2(g[:, :, j:] - g[:, :, j : j + 1])
        A[:, :, j:, :, j] = (q[:, :, j:] * decayed).sum(-1) / math.sqrt(q.shape[-1])
        L[:, :, j + 1 :, :, j] = ((k[:, :, j:] * decayed).sum(-1) * b[:, :, j:])[:, :, 1:]
    return A.flatten(1, 2), L.flatten(1, 2)


def kda(batch: int, length: int, heads: int, width: int = 128) -> atune.Workload:
    return atune.Workload(
        kda_chunk,
        atune.Space(block_H=[1, 2, 4, 8, 16], num_stages=range(16), threads=[32, 64, 128, 256]),
        arguments={"batch": batch, "length": length, "heads": heads, "width": width},
        inputs=kda_inputs,
        reference=kda_products,
        rtol=1e-3,
        zero=[4, 5],
        name=f"kda_{batch}_{length}_{heads}",
        bytes=batch * length * heads * (8.0 * width + 8 * CHUNK + 2),
    )


WORKLOADS = [
    *(gemm(*size, "float16", GEMM_AXES) for size in SIZES),
    *(gemm(*size, FP8, FP8_AXES) for size in SIZES),
    *(grouped(sizes, 2048, 7168) for sizes in ([1, 2, 4, 8], [32] * 8, [128] * 4)),
    *(grouped(sizes, 7168, 2048) for sizes in ([256] * 3, [63, 77, 111, 280])),
    attention_forward(1, 512, 32, 64, causal=True),
    attention_forward(2, 2048, 16, 64, causal=True),
    attention_forward(1, 4096, 32, 128, causal=False),
    attention_forward(1, 4096, 32, 128, causal=True),
    attention_forward(1, 8192, 16, 128, causal=True),
    *(kda(*size) for size in ((1, 1024, 32), (1, 2048, 16), (2, 2048, 32), (1, 4096, 64), (1, 8192, 32))),
]
globals().update({workload.name.upper(): workload for workload in WORKLOADS})
