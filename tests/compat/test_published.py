"""The situations of tilelang's own published tests of its tuner, on the CPU target: what they read must be there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from drop_in_tuners import BLOCKS, key
from tilelang.autotuner import tuner

import atune.compat.tilelang as compat
from atune.compat.tilelang import set_autotune_inputs
from atune.errors import WorkloadError

pytestmark = pytest.mark.timeout(170)
ON_CPU = {"target": "c", "execution_backend": "cython"}


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


# ---- scalars


@tilelang.jit(**ON_CPU)
def add_scalar(n: int = 64, block: int = 16) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), s: T.float32, B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] + s

    return main


def test_a_scalar_without_a_value_is_a_value_error_that_says_how_to_give_one() -> None:
    kernel = tuner.autotune(configs=BLOCKS, warmup=1, rep=1)(add_scalar)
    with pytest.raises(ValueError, match=r"float32 scalar .* `with set_autotune_inputs\(\.\.\.\)`") as refused:
        kernel()
    assert isinstance(refused.value, WorkloadError)
    with set_autotune_inputs(torch.randn(64), 0.5, torch.empty(64)):
        found = kernel()
    A, B = torch.randn(64), torch.empty(64)
    found(A, 0.5, B)
    assert torch.equal(B, A + 0.5)


# ---- the key of a result


def test_of_given_inputs_integers_count_by_value_and_floats_by_shape() -> None:
    """Lengths, indices and masks decide what a kernel does; floats are often drawn anew in each program."""

    def key_of(*tensors: Any) -> str:
        with set_autotune_inputs(*tensors):
            return key()

    ones, lengths, mask = torch.ones(64), torch.tensor([3, 5]), torch.tensor([True, False])
    assert key_of(ones, lengths, mask) == key_of(torch.zeros(64), lengths.clone(), mask)
    others = [(torch.ones(32), lengths, mask), (ones, lengths.flip(0), mask), (ones, lengths, ~mask), (ones, 3, mask)]
    assert len({key_of(ones, lengths, mask), *(key_of(*other) for other in others)}) == 5
    assert key_of(torch.zeros(0, dtype=torch.int32)) != key_of(torch.zeros((), dtype=torch.int32))
