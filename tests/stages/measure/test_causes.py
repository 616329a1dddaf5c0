"""Likely causes of a mismatch, on CPU tensors: what the message says in addition to the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from atune.model.artifact import KernelParam, Roles
from atune.stages.measure.arguments import POISONS, KernelArguments
from atune.stages.measure.check import Mismatch, expected_outputs, judged, with_cause
from atune.workload.workload import Workload

X = KernelParam("float32", (8, 8))
Kernel = Callable[..., None]


def explained(kernel: Kernel, reference: Callable[..., Any], *params: KernelParam, **options: Any) -> Mismatch | None:
    """Return what is wrong with `kernel`, called as a candidate is, with the likely causes."""
    work = Workload(lambda x: None, [{"x": 1}], reference=reference, **options)
    outputs = (len(params) - 1,) if work.out_idx is None else work.out_idx
    arguments = KernelArguments(work, params, Roles(outputs, work.zero), "cpu")
    expected = expected_outputs(work, arguments)
    arguments.fill_outputs(POISONS[0])
    kernel(*arguments.values)
    wrong, _ = judged(work, arguments, expected, arguments.kept(POISONS[0]))
    return wrong and with_cause(wrong, work, arguments, expected, lambda: kernel(*arguments.values))


def double(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


def test_digits_that_differ_are_in_the_message() -> None:
    wrong = explained(double, lambda x: x * (2 + 1e-6), X, X, rtol=1e-9, atol=0)
    assert wrong is not None
    ours, theirs = wrong.message.partition(": first at [0, 0], ")[2].partition(";")[0].split(" and not ")
    assert ours != theirs


def test_a_transposed_output_is_named() -> None:
    def transposed(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(2 * x.T)

    wrong = explained(transposed, lambda x: x * 2, X, X)
    assert wrong is not None and "the reference's output transposed" in wrong.message
    long = KernelParam("float32", (8, 4))
    wrong = explained(double, lambda x: (x * 2).T, long, long)
    assert wrong is not None and "shape [8, 4], the reference's is [4, 8]" in wrong.message
    assert "the reference's output transposed" in wrong.message


def test_a_reference_of_the_same_dtype_is_not_blamed() -> None:
    wrong = explained(double, lambda x: x * 3, X, X)
    assert wrong is not None and "the reference gives" not in wrong.message


def test_a_reference_of_another_dtype_is_named() -> None:
    wrong = explained(double, lambda x: (x * 2).to(torch.float16), X, X)
    assert wrong is not None and wrong.message.startswith("the reference gives float16 and the kernel float32; ")


def accumulate(x: torch.Tensor, out: torch.Tensor) -> None:
    out.mul_(2).add_(x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_output_updated_in_place_is_told_from_one_that_is_not_written(dtype: str) -> None:
    param = KernelParam(dtype, (8, 8))
    wrong = explained(accumulate, lambda x: x, param, param)
    assert wrong is not None and wrong.kind == "mismatch"
    assert "output 0 is updated in place" in wrong.message and "zero=[1]" in wrong.message


def test_both_ways_that_the_message_names_work() -> None:
    def update(x: torch.Tensor, out: torch.Tensor) -> None:
        out.mul_(2).add_(x)

    assert explained(accumulate, lambda x: x, X, X, zero=[1]) is None
    assert explained(accumulate, update, X, X, out_idx=[]) is None


def test_outputs_that_are_not_written_or_hold_nan_stay_what_they_are() -> None:
    def half(x: torch.Tensor, out: torch.Tensor) -> None:
        out[:4] = x[:4]

    def undefined(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x / 0 * 0)

    for kernel, kind in ((half, "unwritten"), (undefined, "non_finite")):
        wrong = explained(kernel, lambda x: x, X, X)
        assert wrong is not None and wrong.kind == kind and "in place" not in wrong.message


def test_a_kernel_that_is_not_deterministic_is_not_told_that_it_updates_in_place() -> None:
    def noisy(x: torch.Tensor, out: torch.Tensor) -> None:
        out.view(torch.int32).copy_(0x7FC00000 + torch.randint(1, 1 << 20, (8, 8)))  # NaN of many kinds

    wrong = explained(noisy, lambda x: x, X, X)
    assert wrong is not None and wrong.kind == "non_finite" and "in place" not in wrong.message


def test_atomic_adds_to_what_was_there_are_an_update_in_place() -> None:
    """Their order is open, and so are the last bits of some elements."""

    def adding(x: torch.Tensor, out: torch.Tensor) -> None:
        out.add_(x)
        out[:6] *= 1 + 1e-6 * torch.rand(6, 8)

    wrong = explained(adding, lambda x: x, X, X)
    assert wrong is not None and "output 0 is updated in place" in wrong.message


def test_without_memory_to_look_for_a_cause_the_mismatch_stays() -> None:
    calls: list[int] = []

    def wrong_once(x: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(0)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    wrong = explained(wrong_once, lambda x: x * 2, X, X)
    assert wrong is not None and wrong.kind == "unwritten" and len(calls) == 2
