"""Kernels that return outputs in every way that tilelang's adapters know: for the CPU, and the same for a GPU."""

# Annotations are evaluated: they name local values.

from typing import Any

import tilelang.language as T

N = 64


def one(n: Any = N, dtype: str = "float32", threads: Any = None) -> Any:
    """B = A + A."""

    @T.prim_func
    def main(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, 32), threads=threads) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < n:
                    B[bx * 32 + i] = A[bx * 32 + i] + A[bx * 32 + i]

    return main


def copied(dtype: str, threads: Any = None) -> Any:
    """B = A, of any dtype."""

    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=threads):
            for i in T.Parallel(N):
                B[i] = A[i]

    return main


def several(threads: Any = None) -> Any:
    """S = A + B and D = A - B; S is an int32, and stands before the inputs."""

    @T.prim_func
    def main(
        S: T.Tensor((N,), "int32"), A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32"), D: T.Tensor((N,), "float32")
    ):
        with T.Kernel(1, threads=threads):
            for i in T.serial(N):
                S[i] = A[i] + B[i]
                D[i] = T.cast(A[i] - B[i], "float32")

    return main


def symbolic(threads: Any = None) -> Any:
    """B = A, transposed, of any shape."""
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), B: T.Tensor((n, m), "float32")):
        with T.Kernel(m, threads=threads) as bx:
            for j in T.serial(n):
                B[j, bx] = A[bx, j]

    return main


def twice_as_long(threads: Any = None) -> Any:
    """B = A, and A once more behind it: its size is an expression."""
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m,), "float32"), B: T.Tensor((2 * m,), "float32")):
        with T.Kernel(m, threads=threads) as bx:
            B[bx] = A[bx]
            B[bx + m] = A[bx]

    return main


def scaled(threads: Any = None) -> Any:
    """B = A * by + plus; both are given at run time, on either side of the output."""

    @T.prim_func
    def main(by: T.int32, A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), plus: T.float32):
        with T.Kernel(1, threads=threads):
            for i in T.Parallel(N):
                B[i] = A[i] * T.cast(by, "float32") + plus

    return main


def from_numbers(threads: Any = None) -> Any:
    """B = by, by + 1, …: no tensor is given."""

    @T.prim_func
    def main(by: T.int32, B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=threads):
            for i in T.serial(N):
                B[i] = by + i

    return main


def in_place(threads: Any = None) -> Any:
    """A += B."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=threads):
            for i in T.Parallel(N):
                A[i] = A[i] + B[i]

    return main
