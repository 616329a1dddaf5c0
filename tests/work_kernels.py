"""Kernels whose blocks' work is counted by hand, and some whose work only a call, or a thread, decides.

Annotations are evaluated: they name local values.
"""

from typing import Any

import tilelang.language as T

import atune

M, N, K = 256, 384, 512


def product(
    block_M: int = 64, block_N: int = 128, block_K: int = 32, num_stages: int = 2, order: int = 0, occupancy: int = 0
) -> Any:
    crowds = occupancy > 0

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            if crowds:
                T.annotate_min_blocks_per_sm(occupancy)
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(max(order, 1), enable=order > 0)
            T.clear(C_local)
            for ko in T.Pipelined(K // block_K, num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def chained(block_M: int = 128, threads: int = 256) -> Any:
    """Y = (X W) W, where the first product stays in registers."""

    @T.prim_func
    def main(X: T.Tensor((M, 64), "float16"), W: T.Tensor((64, 64), "float16"), Y: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            X_shared = T.alloc_shared((block_M, 64), "float16")
            W_shared = T.alloc_shared((64, 64), "float16")
            first = T.alloc_fragment((block_M, 64), "float32")
            operand = T.alloc_fragment((block_M, 64), "float16")
            second = T.alloc_fragment((block_M, 64), "float32")
            T.copy(X[bx * block_M, 0], X_shared)
            T.copy(W, W_shared)
            T.clear(first)
            T.clear(second)
            T.gemm(X_shared, W_shared, first, policy=T.GemmWarpPolicy.FullRow)
            T.copy(first, operand)
            T.gemm(operand, W_shared, second, policy=T.GemmWarpPolicy.FullRow)
            T.copy(second, Y[bx * block_M, 0])

    return main


def moved(width: int = 4) -> Any:
    """Y = 2 X + W, a row a block, where W is of a row's length."""
    at_once = T.int32(width)

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), W: T.Tensor((N,), "float32"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, 4), threads=128) as bx:
            for i, j in T.Parallel(4, N, coalesced_width=at_once):
                Y[bx * 4 + i, j] = X[bx * 4 + i, j] * 2.0 + W[j]

    return main


def triangle(half: bool = False) -> Any:
    """A block reads as many tiles as its number says, and one more; with `half` one in two blocks writes."""

    @T.prim_func
    def main(X: T.Tensor((8, 1024), "float32"), Y: T.Tensor((8, 128), "float32")):
        with T.Kernel(8, threads=128) as bx:
            tile = T.alloc_shared((128,), "float32")
            for n in T.serial(bx + 1):
                T.copy(X[bx, n * 128 : (n + 1) * 128], tile)
            if half:
                if bx % 2 == 0:
                    T.copy(tile, Y[bx, :])
            else:
                T.copy(tile, Y[bx, :])

    return main


def of_any_rows(tile: int = 64) -> Any:
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, N), "float32"), Y: T.Tensor((rows, N), "float32")):
        with T.Kernel(T.ceildiv(rows, tile), threads=128) as bx:
            shared = T.alloc_shared((tile, N), "float32")
            T.copy(X[bx * tile, 0], shared)
            T.copy(shared, Y[bx * tile, 0])

    return main


def of_any_length(tile: int = 64) -> Any:
    length = T.dynamic("length")

    @T.prim_func
    def main(X: T.Tensor((M, length), "float32"), Y: T.Tensor((M, length), "float32")):
        with T.Kernel(M, threads=128) as bx:
            shared = T.alloc_shared((tile,), "float32")
            for n in T.serial(T.ceildiv(length, tile)):
                T.copy(X[bx, n * tile], shared)
                T.copy(shared, Y[bx, n * tile])

    return main


def by_thread(step: int = 1) -> Any:
    @T.prim_func
    def main(X: T.Tensor((M, 128), "float32"), Y: T.Tensor((M, 128), "float32")):
        with T.Kernel(M, threads=128) as bx:
            tx = T.get_thread_binding()
            place = tx * step
            Y[bx, place] = X[bx, place] * 2.0

    return main


def guarded(tile: int = 100) -> Any:
    """Copy as many of a row's elements as there are: the last tile is not full."""

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, tile), M, threads=128) as (bx, by):
            for i in T.Parallel(tile):
                if bx * tile + i < N:
                    Y[by, bx * tile + i] = X[by, bx * tile + i]

    return main


def grouped(block_N: int = 64) -> Any:
    """Groups of rows of X by a matrix each, as many rows of the last tile as the tensor `ends` says."""

    @T.prim_func
    def main(
        X: T.Tensor((M, K), "float16"),
        W: T.Tensor((2, K, N), "float16"),
        ends: T.Tensor((2,), "int32"),
        Y: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(4, T.ceildiv(N, block_N), threads=128) as (bx, by):
            X_shared = T.alloc_shared((64, 64), "float16")
            W_shared = T.alloc_shared((64, block_N), "float16")
            sums = T.alloc_fragment((64, block_N), "float32")
            group = T.alloc_var("int32")
            group = 0
            for i in range(2):
                group = T.if_then_else(bx * 64 >= ends[i], i, group)
            left = ends[group] - bx * 64
            T.clear(sums)
            for ko in T.Pipelined(K // 64, num_stages=2):
                T.copy(X[bx * 64, ko * 64], X_shared)
                T.copy(W[group, ko * 64 : (ko + 1) * 64, by * block_N : (by + 1) * block_N], W_shared)
                T.gemm(X_shared, W_shared, sums)
            for i, j in T.Parallel(64, block_N):
                if i < left:
                    Y[bx * 64 + i, by * block_N + j] = sums[i, j]

    return main


def summed(threads: int = 32) -> Any:
    """Y = sum of X², a row a block: the squares are needed no longer when the sum is there, X is."""

    @T.prim_func
    def main(X: T.Tensor((M, 128), "float32"), Y: T.Tensor((M, 128), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_fragment((1, 128), "float32")
            square = T.alloc_fragment((1, 128), "float32")
            total = T.alloc_fragment((1,), "float32")
            scaled = T.alloc_fragment((1, 128), "float32")
            T.copy(X[bx, 0], row)
            for i, j in T.Parallel(1, 128):
                square[i, j] = row[i, j] * row[i, j]
            T.reduce_sum(square, total, dim=1)
            for i, j in T.Parallel(1, 128):
                scaled[i, j] = row[i, j] * total[i]
            T.copy(scaled, Y[bx, 0])

    return main


def by_value(tile: int = 128) -> Any:
    @T.prim_func
    def main(X: T.Tensor((M, 128), "float32"), Y: T.Tensor((M, 128), "float32")):
        with T.Kernel(M, threads=128) as bx:
            for i in T.Parallel(tile):
                if X[bx, i] > 0.0:
                    Y[bx, i] = X[bx, i]

    return main


def crowded(occupancy: int = 1) -> Any:
    """A product with warps of its own for copies, and room for so many blocks on a multiprocessor. Two never return."""
    return product(128, 64, 64, 2, occupancy=occupancy)


def turned(padding: int = 0) -> Any:
    """A tile's rows are written, and its columns read."""

    @T.prim_func
    def main(X: T.Tensor((M, M), "float16"), Y: T.Tensor((M, M), "float16")):
        with T.Kernel(M // 64, M // 64, threads=128) as (bx, by):
            tile = T.alloc_shared((64, 64 + padding), "float16")
            for i, j in T.Parallel(64, 64):
                tile[i, j] = X[by * 64 + i, bx * 64 + j]
            for j, i in T.Parallel(64, 64):
                Y[bx * 64 + j, by * 64 + i] = tile[i, j]

    return main


def picked(block_M: int = 64, num_stages: int = 2) -> Any:
    """A product of which some raise, and some have too much shared memory, on one board or another."""
    if block_M == 96:
        raise ValueError(f"no such tile: {block_M}")
    return product(block_M, 128, 128, num_stages)


def workload(kernel: Any, **axes: Any) -> atune.Workload:
    return atune.Workload(kernel, atune.Space(**axes))


CROWDED = workload(crowded, occupancy=[1, 2])
ORDERS = atune.Workload(product, atune.Space(num_stages=[0, 1, 3], order=[10, 4, 0]))
PRODUCT = workload(product, num_stages=[0, 3], order=[0, 4])
CHAINED = workload(chained, block_M=[64, 128, 256], threads=[128, 256])
MOVED = workload(moved, width=[2, 4])
TRIANGLE = workload(triangle, half=[False, True])
ANY_ROWS = workload(of_any_rows, tile=[64])
ANY_LENGTH = workload(of_any_length, tile=[64])
BY_THREAD = workload(by_thread, step=[1])
BY_VALUE = workload(by_value, tile=[128])
PICKED = workload(picked, block_M=[64, 96, 256], num_stages=[0, 3])
TOO_LARGE = workload(picked, block_M=[256], num_stages=[3, 4])
RAISING = workload(picked, block_M=[96], num_stages=[0, 3])
TURNED = workload(turned, padding=[0, 2, 8])
GROUPED, THIRDS = workload(grouped, block_N=[64]), workload(grouped, block_N=[96])
SUMMED = workload(summed, threads=[32, 64, 256])
GUARDED = workload(guarded, tile=[100])
