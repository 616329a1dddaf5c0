"""Four kinds of kernel whose loops and fragments are axes: a norm, attention, a dequantising GEMM and a transpose."""

from __future__ import annotations

from typing import Any

import tilelang
import tilelang.language as T
import torch

import atune
from atune import layout

try:
    from bench.attention import WORKLOAD as ATTENTION
except ModuleNotFoundError:
    from attention import WORKLOAD as ATTENTION  # type: ignore[import-not-found,no-redef]

__all__ = ["ATTENTION", "DEQUANTISING", "NORM", "TRANSPOSE"]


def norm(rows: int, columns: int, block_rows: int = 4, threads: int = 128, loop: str = layout.COMPILER) -> Any:
    """Root mean square norm of rows in float16; a block has `block_rows` whole rows in fragments."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float16"), Out: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block_rows), threads=threads) as block:
            x = T.alloc_fragment((block_rows, columns), "float32")
            squares = T.alloc_fragment((block_rows, columns), "float32")
            total = T.alloc_fragment((block_rows,), "float32")
            for r, c in layout.parallel(loop, block_rows, columns, threads=threads):
                x[r, c] = X[block * block_rows + r, c]
            for r, c in T.Parallel(block_rows, columns):
                squares[r, c] = x[r, c] * x[r, c]
            T.reduce_sum(squares, total, dim=1)
            for r, c in T.Parallel(block_rows, columns):
                Out[block * block_rows + r, c] = x[r, c] * T.rsqrt(total[r] / columns + 1e-6)

    return main


def dequantising(
    M: int, N: int, K: int, block_M: int = 128, block_N: int = 128, block_K: int = 64, threads: int = 256,
    loop: str = layout.COMPILER, policy: str = "Square",
) -> Any:  # fmt: skip
    """C = A × (B in int8, times a scale for each row)ᵀ; a block turns its part of B into float16 in shared memory."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "int8"),
        S: T.Tensor((N,), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (n, m):
            a = T.alloc_shared((block_M, block_K), "float16")
            b = T.alloc_shared((block_N, block_K), "float16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=0):
                T.copy(A[m * block_M, k * block_K], a)
                for i, j in layout.parallel(loop, block_N, block_K, threads=threads):
                    b[i, j] = T.cast(B[n * block_N + i, k * block_K + j], "float16") * S[n * block_N + i]
                T.gemm(a, b, c, transpose_B=True, policy=getattr(T.GemmWarpPolicy, policy))
            T.copy(c, C[m * block_M, n * block_N])

    return main


SWIZZLES = {
    "linear": tilelang.layout.make_linear_layout,
    "full": tilelang.layout.make_full_bank_swizzled_layout,
    "half": tilelang.layout.make_half_bank_swizzled_layout,
    "quarter": tilelang.layout.make_quarter_bank_swizzled_layout,
}


def transpose(n: int, block: int = 64, threads: int = 256, read: str = layout.COMPILER, write: str = layout.COMPILER,
              swizzle: str = layout.COMPILER) -> Any:  # fmt: skip
    """Out = Xᵀ in float16, by square tiles in shared memory."""

    @T.prim_func
    def main(X: T.Tensor((n, n), "float16"), Out: T.Tensor((n, n), "float16")):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(n, block), threads=threads) as (x, y):
            tile = T.alloc_shared((block, block), "float16")
            if swizzle != layout.COMPILER:
                T.annotate_layout({tile: SWIZZLES[swizzle](tile)})
            for i, j in layout.parallel(read, block, block, threads=threads):
                tile[i, j] = X[y * block + i, x * block + j]
            for i, j in layout.parallel(write, block, block, threads=threads):
                Out[x * block + i, y * block + j] = tile[j, i]

    return main


def normed(X: torch.Tensor) -> torch.Tensor:
    x = X.float()
    return (x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)).half()


def weights() -> list[torch.Tensor]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    A = torch.randn(4096, 4096, device=device).half()
    B = torch.randint(-127, 128, (4096, 4096), device=device, dtype=torch.int8)
    return [A, B, (torch.rand(4096, device=device) / 127).half()]


NORM = atune.Workload(
    norm,
    atune.Space(block_rows=[1, 4], threads=[128, 256], loop=layout.loops(2, 8)),
    arguments={"rows": 8192, "columns": 4096},
    reference=normed,
    name="norm",
)
DEQUANTISING = atune.Workload(
    dequantising,
    atune.Space(block_N=[128, 64], loop=layout.loops(4, 8, 16), policy=["Square", "FullRow", "FullCol"]),
    arguments={"M": 4096, "N": 4096, "K": 4096},
    inputs=weights,
    reference=lambda A, B, S: A @ (B.half() * S[:, None]).T,
    name="dequantising GEMM",
)
TRANSPOSE = atune.Workload(
    transpose,
    atune.Space(
        block=[64, 32],
        threads=[256, 128],
        read=layout.loops(2, 8),
        write=layout.loops(2, 8),
        swizzle=[layout.COMPILER, *SWIZZLES],
    ),
    arguments={"n": 8192},
    reference=lambda X: X.T,
    name="transpose",
)
