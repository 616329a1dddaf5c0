"""Small kernels that lower and compile for CUDA without a GPU: what cicc is tried on."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune

SQUARE = (512, 512)


def gemm(block: int, swizzle: bool, sums: str = "float32") -> Any:
    """A pipelined product by tensor cores, whose blocks may be swizzled."""

    @T.prim_func
    def main(A: T.Tensor(SQUARE, "float16"), B: T.Tensor(SQUARE, "float16"), C: T.Tensor(SQUARE, "float16")):
        with T.Kernel(512 // block, 512 // block, threads=128) as (bx, by):
            T.use_swizzle(panel_size=10, enable=swizzle)
            a, b = T.alloc_shared((block, 32), "float16"), T.alloc_shared((32, block), "float16")
            c = T.alloc_fragment((block, block), sums)
            T.clear(c)
            for k in T.Pipelined(16, num_stages=2):
                T.copy(A[by * block, k * 32], a)
                T.copy(B[k * 32, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return main


def plus(block: int, n: Any = 4096) -> Any:
    """An addition of one: nothing checks it, so that a wrong accelerator's library is measured."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=block) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] + T.float32(1.0)

    return main


def add(block: int) -> Any:
    """An addition, of a size that is known only when it is called."""
    return plus(block, T.dynamic("n"))


def rows(block: int) -> Any:
    """A sum over rows, by a reduction among threads."""

    @T.prim_func
    def main(X: T.Tensor((256, 512), "float32"), Y: T.Tensor((256,), "float32")):
        with T.Kernel(256 // block, threads=128) as bx:
            x, y = T.alloc_fragment((block, 512), "float32"), T.alloc_fragment((block,), "float32")
            T.copy(X[bx * block, 0], x)
            T.reduce_sum(x, y, dim=1)
            T.copy(y, Y[bx * block])

    return main


TABLE = """
#ifndef ATUNE_TESTS_TABLE
#define ATUNE_TESTS_TABLE
__device__ __constant__ float table_of_two[2] = {4.0f, 5.0f};
__device__ __forceinline__ float of_table(int i) { return table_of_two[i & 1]; }
#endif
"""


def two(block: int) -> Any:
    """Two kernels in one function, the second with a factor of its own, and a table of constants."""

    @T.prim_func
    def main(A: T.Tensor((4096,), "float32"), B: T.Tensor((4096,), "float32"), C: T.Tensor((4096,), "float32")):
        with T.Kernel(4096 // block, threads=block) as bx:
            T.import_source(TABLE)
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * T.call_extern("float32", "of_table", i)
        with T.Kernel(4096 // block, threads=block) as bx:
            for i in T.Parallel(block):
                C[bx * block + i] = B[bx * block + i] * T.float32(2.0)

    return main


TWO = atune.Workload(two, [{"block": b} for b in (64, 128)], inputs=[None] * 3)
GEMM = atune.Workload(gemm, [{"block": b, "swizzle": b == 64} for b in (64, 128)], inputs=[None] * 3)
ADD = atune.Workload(add, [{"block": b} for b in (64, 128)], inputs=[None] * 2)
ROWS = atune.Workload(rows, [{"block": b} for b in (4, 8)], inputs=[None] * 2)


PLUS = atune.Workload(plus, [{"block": b} for b in (64, 128, 256)], out_idx=[-1])
