"""Which parameters a kernel's code may write into, by every way that TileLang has to write."""

from __future__ import annotations

from typing import Any

import pytest
import tilelang.language as T

from atune.stages.frontend.jit_kernel import written

SHAPE = (64, 64)


def by_assignment() -> Any:
    @T.prim_func
    def main(A: T.Tensor(SHAPE, "float32"), n: T.int32, B: T.Tensor(SHAPE, "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                B[i, 0] = A[i, n]

    return main


def by_tiles() -> Any:
    @T.prim_func
    def main(A: T.Tensor(SHAPE, "float16"), B: T.Tensor(SHAPE, "float16"), C: T.Tensor(SHAPE, "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared(SHAPE, "float16"), T.alloc_shared(SHAPE, "float16")
            c = T.alloc_fragment(SHAPE, "float32")
            T.copy(A[0, 0], a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, C[0:64, 0:64])

    return main


def by_adding() -> Any:
    @T.prim_func
    def main(A: T.Tensor(SHAPE, "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor(SHAPE, "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment(SHAPE, "float32")
            T.copy(A, a)
            for i in T.Parallel(64):
                T.atomic_add(B[i], a[i, 0])
            T.atomic_add(C[0, 0], a)

    return main


def by_calls() -> Any:
    """`A` is read, `B` is written, and nothing tells what becomes of the address of `C`."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            T.call_extern("handle", "foo", A.access_ptr("r"), B.access_ptr("rw"))
            T.call_extern("handle", "foo", T.address_of(C[0]))

    return main


@pytest.mark.parametrize(
    ("kernel", "found"), [(by_assignment, {2}), (by_tiles, {2}), (by_adding, {1, 2}), (by_calls, {1, 2})]
)
def test_what_code_may_write_into(kernel: Any, found: set[int]) -> None:
    assert written(kernel()) == found
