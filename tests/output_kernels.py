"""Kernels that write in every way: outputs, in place, in part, and into what they read. For the CPU."""

from typing import Any

import tilelang
import tilelang.language as T

N, ROWS = 64, 8


def doubled(block: int = 8) -> Any:
    """Y = 2 X; the last parameter is the input."""

    @T.prim_func
    def main(Y: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32")):
        with T.Kernel(N // block) as b:
            for i in T.serial(block):
                Y[b * block + i] = X[b * block + i] * 2.0

    return main


def signs(block: int = 8) -> Any:
    """M = -1, of eight bits, and P = X > 0."""

    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), M: T.Tensor((N,), "int8"), P: T.Tensor((N,), "bool")):
        with T.Kernel(N // block) as b:
            for i in T.serial(block):
                M[b * block + i] = T.cast(-1, "int8")
                P[b * block + i] = X[b * block + i] > 0.0

    return main


def partly(dtype: str, low: int = 0, high: int = N) -> Any:
    """Y = X, of elements from `low` to `high`."""

    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        with T.Kernel(1):
            for i in T.serial(high - low):
                Y[low + i] = X[low + i]

    return main


def added(block: int = 8) -> Any:
    """S = S + the sum of the rows of X."""

    @T.prim_func
    def main(X: T.Tensor((ROWS, N), "float32"), S: T.Tensor((N,), "float32")):
        with T.Kernel(N // block) as b:
            for k in T.serial(ROWS):
                for i in T.serial(block):
                    S[b * block + i] += X[k, b * block + i]

    return main


def counted(block: int = 8) -> Any:
    """Y = X + W, where W is zero at first; then W grows."""

    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), W: T.Tensor((1,), "int32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                Y[i] = X[i] + T.cast(W[0], "float32")
            W[0] = W[0] + block

    return main


@tilelang.jit
def scaled_rows(X, P, block: int = 16):  # type: ignore[no-untyped-def]
    """X = X P, in place."""
    X: T.Tensor[[ROWS, N], T.float32]
    P: T.Tensor[[ROWS], T.float32]
    with T.Kernel(ROWS) as r:
        for i in T.serial(N // block):
            for j in T.serial(block):
                X[r, i * block + j] = X[r, i * block + j] * P[r]


@tilelang.jit
def walked(X, L, mode: int = 0):  # type: ignore[no-untyped-def]
    """Ten times the work in mode 0, over as many elements as the last tensor says."""
    n = T.const("n")
    X: T.Tensor[[n], T.float32]
    L: T.Tensor[[1], T.int32]
    with T.Kernel(1):
        for i in T.serial(L[0]):
            for _ in T.serial(20 if mode == 0 else 2):
                X[i] = T.sin(X[i] + 1.0)


def split(parts: int = 1, swapped: bool = False, first: bool = False) -> Any:
    """B = 2 A, by way of a workspace W where there are several parts; `swapped`: B is the first; `first`: W is."""

    @T.prim_func
    def alone(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                B[i] = A[i] * 2.0

    def fill(A: Any, W: Any, B: Any) -> None:
        for part, i in T.grid(parts, N):
            W[part, i] = A[i]
        for i in T.serial(N):
            B[i] = W[0, i] + W[parts - 1, i]

    fill = T.macro(fill)

    @T.prim_func
    def between(A: T.Tensor((N,), "float32"), W: T.Tensor((parts, N), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            fill(A, W, B)

    @T.prim_func
    def before(W: T.Tensor((parts, N), "float32"), A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            fill(A, W, B)

    return doubled() if swapped else alone if parts == 1 else before if first else between


def split_by_size(size: int, block: int = 1) -> Any:
    """As `split`, with a workspace for small sizes."""
    return split(1 if size >= N else 2)


def lazy(writes: bool = True) -> Any:
    """B = A, or nothing."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                if writes:
                    B[i] = A[i]

    return main
