"""Strides of inputs and outputs are kept, from the given tensor to the device's process and to the winner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import atune
from atune.errors import WorkloadError
from atune.model.artifact import KernelParam, Roles
from atune.model.settings import BenchmarkSettings
from atune.stages.arguments import KernelArguments
from atune.stages.tensors import has_layout
from atune.workload.pickling import load, ship
from atune.workload.workload import Workload

KERNELS = Path(__file__).parents[2] / "strided_kernels.py"
FEW = BenchmarkSettings(n_repeat=3, n_final=0)
ROWS = KernelParam("float32", (4, 8), ("row", 1))
OUT = KernelParam("float32", (8, 4), (1, 8))
OUTPUT = Roles((1,))


def arguments(given: torch.Tensor | None, *params: KernelParam, **options: Any) -> KernelArguments:
    inputs = None if given is None else [given]
    work = Workload(lambda x: None, [{"x": 1}], inputs=inputs, **options)
    return KernelArguments(load(ship(work)), params, OUTPUT, "cpu")


def rows(stride: int) -> torch.Tensor:
    return torch.arange(4.0 * 16).as_strided((4, 8), (stride, 1))


@pytest.mark.parametrize("stride", [8, 11, 3, 0])
def test_a_given_tensor_keeps_its_strides_on_its_way(stride: int) -> None:
    """Contiguous, with gaps, overlapping and expanded ones; the memory is a copy."""
    given = rows(stride)
    made = arguments(given, ROWS, OUT)
    value = made.values[0]
    assert value.stride() == (stride, 1) and torch.equal(value, given)
    assert made.values[1].stride() == (1, 8) and made.values[1].shape == (8, 4)
    copy = made.copies()[0]
    assert copy.stride() == (stride, 1) and torch.equal(copy, given)
    value[1, 2] = -5.0
    assert made.changed() == {0} == made.restore_inputs() and torch.equal(value, rows(stride))
    assert torch.equal(given, rows(stride))


def test_a_write_into_the_gaps_is_found_and_undone() -> None:
    made = arguments(rows(11), ROWS, OUT)
    gap = made.values[0].as_strided((1,), (1,), 9)
    was = gap.item()
    gap.fill_(-1.0)
    assert made.changed() == {0} == made.restore_inputs() and gap.item() == was


def test_a_parameter_without_strides_gets_a_contiguous_copy() -> None:
    given = torch.arange(32.0).view(8, 4).T
    made = arguments(given, KernelParam("float32", (4, 8)), OUT)
    assert made.values[0].is_contiguous() and torch.equal(made.values[0], given)


def test_strides_that_the_kernel_does_not_take_are_named() -> None:
    with pytest.raises(WorkloadError, match=r"parameter 0: .*with strides \[8, 1\]; .*, with strides \[11, 1\]"):
        arguments(rows(11), KernelParam("float32", (4, 8), (8, 1)), OUT)
    both = (ROWS, KernelParam("float32", (4, 8), ("row", 1)), OUT)
    work = Workload(lambda x: None, [{"x": 1}], inputs=[rows(11), rows(9)])
    with pytest.raises(WorkloadError, match="inputs do not fit: dimension row is 11 elsewhere and 9 here"):
        KernelArguments(work, both, Roles((2,)), "cpu")
    assert has_layout(KernelParam("float32", (1, 8), (99, 1)), torch.zeros(1, 8))


def test_inputs_may_return_one_tensor() -> None:
    given = torch.arange(32.0).view(4, 8)
    work = Workload(lambda x: None, [{"x": 1}], inputs=lambda: given)
    made = KernelArguments(work, (KernelParam("float32", (4, 8)), OUT), OUTPUT, "cpu")
    assert torch.equal(made.values[0], given)


@pytest.mark.parametrize("target", ["c", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("name", "row"), [("DRAWN", None), ("GIVEN", 11)])
def test_strided_kernels_are_tuned_and_used(name: str, row: int | None, target: str) -> None:
    """Each candidate has other strides, or takes the given tensor's; the reference sees them, too."""
    result = atune.run(f"{KERNELS}:{name}", target=target, benchmark=FEW)
    assert result.failed == 0 and result.measured == (3 if row is None else 1) and result.best_config is not None
    stride = row or 8 + result.best_config["pad"]
    a = torch.randn(6 * stride, device="cpu" if target == "c" else "cuda").as_strided((6, 8), (stride, 1))
    out = result.kernel(a)
    assert torch.equal(out, a.T * 2) and out.stride() == (1, 8)
    if row is None and stride != 8:
        with pytest.raises(ValueError, match=r"the kernel takes float32 \[6, 8\], with strides"):
            result.kernel(a.contiguous())
