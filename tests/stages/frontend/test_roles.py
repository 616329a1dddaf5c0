"""Which parameters are outputs, and which the code may write into, by every way that TileLang has to read and write."""

from __future__ import annotations

from typing import Any

import pytest
import tilelang
import tilelang.language as T

from atune.errors import WorkloadError
from atune.model.artifact import Roles
from atune.stages.frontend import READ, WRITE, accesses, kernel_parameters, roles_of

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


def by_pointer() -> Any:
    """`A` is passed as a bare pointer; `B` is a view of another shape."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((4096,), "float32")):
        with T.Kernel(1, threads=128):
            T.evaluate(T.call_extern("handle", "foo", A.data))
            T.fill(T.reshape(B, SHAPE), 0)

    return main


def by_index() -> Any:
    """`I` and `J` are read only where other tensors are indexed: in a tile, and in an atomic's address."""

    @T.prim_func
    def main(
        A: T.Tensor(SHAPE, "float32"),
        I: T.Tensor((64,), "int32"),
        J: T.Tensor((64,), "int32"),
        S: T.Tensor((64,), "float32"),
        B: T.Tensor(SHAPE, "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(SHAPE, "float32")
            T.copy(A[I[0] : I[0] + 64, 0:64], a)
            T.copy(a, B)
            T.atomic_max(S[J[0]], a[0, 0])

    return main


def in_one_branch() -> Any:
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                if A[i] > 0:
                    B[i] = A[i]
                else:
                    C[i] = C[i] + 1

    return main


@tilelang.jit
def returning(A, B):  # type: ignore[no-untyped-def]
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B: T.Tensor[[n], T.float32]
    C = T.empty((n,), T.float32)
    with T.Kernel(1):
        for i in T.serial(n):
            B[i] = A[i]
            C[i] = A[i] * 2
    return C


def returned() -> Any:
    return returning.get_tir(n=64)


R, W, RW = READ, WRITE, READ | WRITE
BY = {
    by_assignment: ({0: R, 2: W}, (2,)),
    by_tiles: ({0: R, 1: R, 2: W}, (2,)),
    by_adding: ({0: R, 1: RW, 2: RW}, ()),
    by_calls: ({0: R, 1: RW, 2: RW}, ()),
    by_pointer: ({0: RW, 1: W}, (1,)),
    by_index: ({0: R, 1: R, 2: R, 3: RW, 4: W}, (4,)),
    in_one_branch: ({0: R, 1: W, 2: RW}, (1,)),
    returned: ({0: R, 1: W, 2: W}, (2,)),
}
"""What is done to each tensor, and the outputs where nobody names any."""


@pytest.mark.parametrize("kernel", BY, ids=lambda kernel: kernel.__name__)
def test_outputs_are_what_is_written_and_never_read(kernel: Any) -> None:
    function, (done, outputs) = kernel(), BY[kernel]
    assert accesses(function) == done
    writes = tuple(i for i, access in done.items() if access & WRITE and i not in outputs)
    assert roles_of(function, None) == Roles(outputs, writes=writes)


def test_what_is_named_is_not_guessed() -> None:
    adding, assigning = by_adding(), by_assignment()
    assert roles_of(adding, [-1]) == Roles((2,), writes=(1,))
    assert roles_of(adding, []) == Roles(writes=(1, 2))
    assert roles_of(adding, None, zero=[1, -1]) == Roles((1, 2), (1, 2))
    assert roles_of(adding, [2], zero=[1]) == Roles((2,), (1,), writes=(1,))
    assert roles_of(assigning, None, zero=[0]) == Roles((0, 2), (0,))
    assert roles_of(assigning, None, restore=[2]) == Roles(writes=(2,))
    assert roles_of(returned(), None, zero=[1]) == Roles((1, 2), (1,))
    for named in ({"out_idx": [3]}, {"out_idx": None, "zero": [-4]}, {"out_idx": None, "restore": [3]}):
        with pytest.raises(WorkloadError, match="the kernel has 3 parameters"):
            roles_of(assigning, **named)
    with pytest.raises(WorkloadError, match=r"out_idx 1: this parameter is a number, but must be a tensor"):
        roles_of(assigning, [1])


def test_what_a_caller_gives_is_the_callers() -> None:
    roles = Roles((1, 2), (1, 2, 3), (3,))
    assert roles.where_given([1, 3]) == Roles((2,), (2, 3), (1, 3)) and roles.zero_inputs == (3,)


def test_a_size_beyond_32_bits_is_a_number() -> None:
    @T.prim_func
    def main(a: T.Tensor((2**37, 4), "float32")):
        with T.Kernel(1):
            a[0, 0] = 1.0

    assert kernel_parameters(main)[0].shape == (2**37, 4)
