"""A flash-attention forward pass, written for tilelang's autotuner. Only an import line differs.

python examples/compat/flash_attention.py
"""

import math
from typing import Any

import tilelang
import tilelang.language as T
import torch

from atune.compat.tilelang import autotune  # was: from tilelang.autotuner import autotune

BATCH, HEADS, LENGTH, WIDTH = 4, 16, 2048, 128


def configs(*shape: int) -> Any:
    """Return tiles of queries and keys."""
    return [
        {"block_q": block_q, "block_k": block_k, "num_stages": num_stages, "threads": threads}
        for block_q, threads in ((64, 128), (128, 128), (128, 256))
        for block_k in (64, 128)
        for num_stages in (1, 2)
    ]


def reference(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V)


@autotune(configs=configs, warmup=3, rep=20, timeout=60, ref_prog=reference, cache_input_tensors=True)
@tilelang.jit(out_idx=[-1], target="cuda")
def attention(
    batch: int,
    heads: int,
    length: int,
    width: int,
    block_q: int = 128,
    block_k: int = 64,
    num_stages: int = 1,
    threads: int = 128,
) -> Any:
    """softmax(Q K^T / sqrt(width)) V, one tile of queries a block; every tensor is (batch, heads, length, width)."""
    shape = (batch, heads, length, width)
    scale = math.log2(math.e) / math.sqrt(width)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        Out: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(length, block_q), heads, batch, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((block_q, width), "float16")
            k = T.alloc_shared((block_k, width), "float16")
            v = T.alloc_shared((block_k, width), "float16")
            scores = T.alloc_fragment((block_q, block_k), "float32")
            weights = T.alloc_fragment((block_q, block_k), "float16")
            out = T.alloc_fragment((block_q, width), "float32")
            highest = T.alloc_fragment((block_q,), "float32")
            before = T.alloc_fragment((block_q,), "float32")
            shrink = T.alloc_fragment((block_q,), "float32")
            part = T.alloc_fragment((block_q,), "float32")
            total = T.alloc_fragment((block_q,), "float32")
            T.copy(Q[bz, by, bx * block_q : (bx + 1) * block_q, :], q)
            T.fill(out, 0.0)
            T.fill(total, 0.0)
            T.fill(highest, -T.infinity("float32"))
            for n in T.Pipelined(T.ceildiv(length, block_k), num_stages=num_stages):
                T.copy(K[bz, by, n * block_k : (n + 1) * block_k, :], k)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(highest, before)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i in T.Parallel(block_q):
                    shrink[i] = T.exp2((before[i] - highest[i]) * scale)
                for i, j in T.Parallel(block_q, block_k):
                    scores[i, j] = T.exp2((scores[i, j] - highest[i]) * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(block_q):
                    total[i] = total[i] * shrink[i] + part[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(block_q, width):
                    out[i, j] *= shrink[i]
                T.copy(V[bz, by, n * block_k : (n + 1) * block_k, :], v)
                T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_q, width):
                out[i, j] /= total[i]
            T.copy(out, Out[bz, by, bx * block_q : (bx + 1) * block_q, :])

    return main


def arguments() -> tuple[Any, ...]:
    return BATCH, HEADS, LENGTH, WIDTH


def inputs() -> list[torch.Tensor]:
    return [torch.randn(arguments(), device="cuda").half() for _ in range(3)]


def tuned() -> Any:
    return attention(*arguments())


if __name__ == "__main__":
    kernel, tensors = tuned(), inputs()
    torch.testing.assert_close(kernel(*tensors), reference(*tensors), rtol=1e-2, atol=1e-2)
    print(f"{kernel.latency:.4f} ms with {kernel.config}; torch {kernel.ref_latency:.4f} ms")
