"""Flash attention, forward: a kernel of two products and a softmax, with a space that has no block order.

python -m atune tune bench/attention.py:WORKLOAD
python -m atune tune bench/attention.py:UNFILTERED --budget 5%

Unlike the candidates of the matrix products, no two candidates differ only in their swizzle, and every tile has another
loop body. After T. Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135, algorithm 1. This file does not
postpone the evaluation of annotations, because they name local values.
"""

import math
from typing import Any

import tilelang.language as T
import torch

import atune

BATCH, HEADS, LENGTH, WIDTH = 4, 16, 2048, 128
CAUSAL = True
SHARED_BYTES = 227 * 1024
"""Most shared memory of a block on sm_90 (CUDA C++ Programming Guide, table of compute capabilities)."""


def attention(
    batch: int,
    heads: int,
    length: int,
    width: int,
    causal: bool,
    block_M: int = 128,
    block_N: int = 64,
    num_stages: int = 2,
    threads: int = 256,
) -> Any:
    """O = softmax(Q K^T / sqrt(width)) V in bfloat16, computed in float32; a block holds `block_M` queries.

    Every tensor is (batch, heads, length, width). With `causal` a query sees the keys up to its own place.
    """
    shape = (batch, heads, length, width)
    # exp(x) is exp2(x * log2 e), and the device has only exp2.
    scale = math.log2(math.e) / math.sqrt(width)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "bfloat16"),
        K: T.Tensor(shape, "bfloat16"),
        V: T.Tensor(shape, "bfloat16"),
        O: T.Tensor(shape, "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared((block_M, width), "bfloat16")
            K_shared = T.alloc_shared((block_N, width), "bfloat16")
            V_shared = T.alloc_shared((block_N, width), "bfloat16")
            S = T.alloc_fragment((block_M, block_N), "float32")
            P = T.alloc_fragment((block_M, block_N), "bfloat16")
            O_local = T.alloc_fragment((block_M, width), "float32")
            largest = T.alloc_fragment((block_M,), "float32")
            last = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            row_sum = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")

            T.copy(Q[bz, by, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.fill(O_local, 0.0)
            T.fill(total, 0.0)
            T.fill(largest, -T.infinity("float32"))
            seen = T.ceildiv((bx + 1) * block_M, block_N) if causal else T.ceildiv(length, block_N)
            for n in T.Pipelined(seen, num_stages=num_stages):
                T.copy(K[bz, by, n * block_N : (n + 1) * block_N, :], K_shared)
                if causal:
                    for i, j in T.Parallel(block_M, block_N):
                        hidden = bx * block_M + i < n * block_N + j
                        S[i, j] = T.if_then_else(hidden, -T.infinity("float32"), 0.0)
                else:
                    T.clear(S)
                T.gemm(Q_shared, K_shared, S, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(largest, last)
                T.reduce_max(S, largest, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    rescale[i] = T.exp2((last[i] - largest[i]) * scale)
                for i, j in T.Parallel(block_M, block_N):
                    S[i, j] = T.exp2((S[i, j] - largest[i]) * scale)
                T.reduce_sum(S, row_sum, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * rescale[i] + row_sum[i]
                T.copy(S, P)
                for i, j in T.Parallel(block_M, width):
                    O_local[i, j] *= rescale[i]
                T.copy(V[bz, by, n * block_N : (n + 1) * block_N, :], V_shared)
                T.gemm(P, V_shared, O_local, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, width):
                O_local[i, j] /= total[i]
            T.copy(O_local, O[bz, by, bx * block_M : (bx + 1) * block_M, :])

    return main


def reference(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=CAUSAL)


def fits(block_M: int, block_N: int, num_stages: int, threads: int) -> bool:
    """Tell whether each warp group has 64 or 128 queries, and the queries and all stages of keys and values fit."""
    shared_bytes = 2 * WIDTH * (block_M + 2 * block_N * num_stages)
    return block_M * 128 // threads in (64, 128) and shared_bytes <= SHARED_BYTES


def workload(space: atune.Space, name: str) -> atune.Workload:
    return atune.Workload(
        attention,
        space,
        arguments={"batch": BATCH, "heads": HEADS, "length": LENGTH, "width": WIDTH, "causal": CAUSAL},
        reference=reference,
        atol=0.016,  # for sums that nearly cancel: 3 of 16.7 million elements were off by up to 0.008
        name=name,
        flops=4.0 * BATCH * HEADS * LENGTH**2 * WIDTH / (2 if CAUSAL else 1),
        bytes=8.0 * BATCH * HEADS * LENGTH * WIDTH,
    )


WORKLOAD = workload(
    atune.Space(block_M=[64, 128], block_N=[32, 64, 128], num_stages=[1, 2, 3], threads=[128, 256], where=fits),
    "attention",
)
UNFILTERED = workload(
    atune.Space(
        block_M=[64, 128, 192, 256],
        block_N=[32, 64, 96, 128, 160],
        num_stages=[1, 2, 3, 4],
        threads=[128, 256, 384],
    ),
    "attention, unfiltered",
)
"""240 configurations, including those that a device cannot run."""
