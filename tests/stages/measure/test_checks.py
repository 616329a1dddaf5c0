"""Inputs, checks and effort, on CPU tensors: what a kernel gets, what is found wrong, how often it is called."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from atune.errors import UsageError, WorkloadError
from atune.model.artifact import KernelParam, Roles
from atune.model.settings import BenchmarkSettings
from atune.stages.arguments import POISONS, KernelArguments, drawn
from atune.stages.check import Mismatch, expected_outputs, judged
from atune.stages.tensors import digest_of_bits
from atune.stages.timer import CpuTimer, DeviceStream, Timed, counts, still_wanted
from atune.workload.workload import Workload
from atune.workload.workload_options import SUPPLIES

X = KernelParam("float32", (4, 8))
X64 = KernelParam("float64", (4, 8))


def workload(**options: Any) -> Workload:
    return Workload(lambda x: None, [{"x": 1}], **options)


def arguments(work: Workload, *params: KernelParam, writes: tuple[int, ...] = ()) -> KernelArguments:
    outputs = (len(params) - 1,) if work.out_idx is None else work.out_idx
    return KernelArguments(work, params, Roles(outputs, work.zero, writes), "cpu")


def judge(
    work: Workload, kernel: Callable[..., Any], *params: KernelParam, writes: tuple[int, ...] = ()
) -> Mismatch | None:
    """Run `kernel` as a candidate is: on poisoned outputs, against the reference."""
    made = arguments(work, *params, writes=writes)
    expected = expected_outputs(work, made) if work.reference is not None else None
    unwritten: dict[int, Any] | None = None
    for poison in POISONS:
        made.restore_inputs()
        made.fill_outputs(poison)
        kernel(*made.values)
        unwritten = made.still_holding(poison, unwritten)
    return judged(work, made, expected, unwritten or {})[0]


def double(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


@pytest.mark.parametrize("supply", [None, *SUPPLIES])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "uint16", "bool"]
)
def test_every_supply_gives_every_dtype(dtype: str, supply: str | None) -> None:
    torch.manual_seed(0)
    tensor = drawn(KernelParam(dtype, (64, 32)), [64, 32], "cpu", supply)
    assert str(tensor.dtype) == f"torch.{dtype}" and tensor.shape == (64, 32)
    values = tensor.to(torch.float64)
    assert torch.isfinite(values).all()
    if supply in ("zero", "one"):
        assert (values == (supply == "one")).all()
    else:
        assert len(values.unique()) > 1
    if supply == "integer" and dtype in ("float32", "int32"):
        assert values.min() == -2 and values.max() == 2
    if supply in ("uniform", "auto") and dtype == "float32":
        assert -1 <= values.min() < -0.9 and 0.9 < values.max() <= 1


def test_symbolic_dimensions_come_from_the_arguments_the_inputs_or_the_outputs_that_are_given() -> None:
    params = (KernelParam("float32", ("m", 8)), KernelParam("float32", ("m * 2", 8)))
    from_arguments = Workload(lambda x, m: None, [{"x": 1}], arguments={"m": 3})
    assert [list(v.shape) for v in arguments(from_arguments, *params).values] == [[3, 8], [6, 8]]
    from_inputs = workload(inputs=[torch.ones(5, 8)])
    assert [list(v.shape) for v in arguments(from_inputs, *params).values] == [[5, 8], [10, 8]]
    with pytest.raises(WorkloadError, match="dimension 'm' is symbolic, and its size is unknown: give tensors with"):
        arguments(workload(), *params)
    alone = (KernelParam("float32", (8,)), KernelParam("float32", ("m", 8)))
    made = arguments(workload(inputs=[torch.ones(8), torch.empty(5, 8)]), *alone)
    assert [list(v.shape) for v in made.values] == [[8], [5, 8]]
    with pytest.raises(WorkloadError, match="If only outputs have the dimension, give tensors for all parameters"):
        arguments(workload(inputs=[torch.ones(8)]), *alone)


def test_the_reference_may_return_or_write_its_outputs() -> None:
    """Both are compared; a kernel that does nothing fails each."""
    returns = workload(reference=lambda x: x * 2)
    writes_outputs = workload(reference=double)
    for work in (returns, writes_outputs):
        assert judge(work, double, X, X) is None
        wrong = judge(work, lambda x, out: None, X, X)
        assert wrong is not None and wrong.kind == "unwritten"


def test_a_reference_that_answers_nothing_is_refused() -> None:
    """With tilelang's tuner such a check passes, whatever the kernel writes."""
    with pytest.raises(
        WorkloadError, match=r"returned None, but must return a torch tensor .* \(parameter 1\) and 1 input$"
    ):
        judge(workload(reference=lambda x: None), double, X, X)
    with pytest.raises(WorkloadError, match=r"returned a bool, .*. If the function judges outputs, pass it as check="):
        judge(workload(reference=lambda x, out: True), double, X, X)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), pytest.skip.Exception("no")])
@pytest.mark.parametrize("part", ["inputs", "setup", "reference"])
def test_whatever_the_workloads_own_functions_raise_is_named(part: str, error: BaseException) -> None:
    def raising(*_: Any) -> Any:
        raise error

    with pytest.raises(WorkloadError, match=f"{part} raised {type(error).__name__}"):
        judge(workload(**{"reference": lambda x: x * 2, part: raising}), double, X, X)


def test_a_check_of_ones_own_returns_false_or_raises() -> None:
    def manual(outputs: list[Any], expected: list[Any]) -> None:
        torch.testing.assert_close(outputs[0], expected[0])

    work = workload(reference=lambda x: x * 2, check=manual)
    assert judge(work, double, X, X) is None
    wrong = judge(work, lambda x, out: out.copy_(x * 3), X, X)
    assert wrong is not None and wrong.kind == "mismatch" and "Tensor-likes are not close" in wrong.message

    alone = workload(check=lambda inputs, outputs: torch.equal(outputs[0], inputs[0] * 2))
    assert judge(alone, double, X, X) is None
    for kernel, kind in (
        (lambda x, out: out.copy_(x * 3), "mismatch"),
        (lambda x, out: out.fill_(float("inf")), "non_finite"),
        (lambda x, out: out[0].fill_(1), "unwritten"),
    ):
        wrong = judge(alone, kernel, X, X)
        assert wrong is not None and wrong.kind == kind
        assert "output 1" not in wrong.message, "it is the kernel's only output, whatever the check says"


@pytest.mark.parametrize("error", [ValueError("not sorted"), KeyboardInterrupt("not sorted")])
def test_a_check_that_raises_is_a_mismatch_with_its_message(error: BaseException) -> None:
    def raising(*_: Any) -> None:
        raise error

    wrong = judge(workload(check=raising), double, X, X)
    assert wrong == Mismatch("mismatch", f"the check raised {type(error).__name__}: not sorted")


def test_a_mismatch_says_where_and_how_much() -> None:
    def off(x: torch.Tensor, out: torch.Tensor) -> None:
        double(x, out)
        out[2, 5] += 10

    wrong = judge(workload(reference=lambda x: x * 2), off, X, X)
    assert wrong is not None and wrong.message.startswith("output 0: 1 of 32 elements differ")
    assert "first at [2, 5]" in wrong.message and "largest difference 10" in wrong.message
    assert judge(workload(reference=lambda x: x * 2, max_mismatched_ratio=0.04), off, X, X) is None
    assert judge(workload(reference=lambda x: x * 2, atol=11), off, X, X) is None
    assert compared(made("float32"), made("float32")) is None, "nothing differs where there is nothing"


def test_a_mismatch_names_a_coarse_reference_and_the_elements_that_were_never_written() -> None:
    def one_row(x: torch.Tensor, out: torch.Tensor) -> None:
        out[0] = x[0] * 2 + 9

    wrong = judge(workload(reference=lambda x: (x * 2.1).half()), double, X, X)
    assert wrong is not None and "the reference returns float16, which is less precise than the output's float32" in (
        wrong.message
    )
    wrong = judge(workload(reference=lambda x: x.double() * 2), one_row, X, X)
    assert wrong is not None and "less precise" not in wrong.message
    assert wrong.message.startswith("output 0: 32 of 32") and "; the kernel never wrote 24 of them" in wrong.message


def test_large_integers_must_be_equal_to_the_last_bit() -> None:
    big = KernelParam("int64", (4,))
    work = workload(reference=lambda x: torch.full((4,), 2**60, dtype=torch.int64), inputs=[torch.zeros(4).long()])
    assert judge(work, lambda x, out: out.fill_(2**60), big, big) is None
    wrong = judge(work, lambda x, out: out.fill_(2**60 + 1), big, big)
    assert wrong is not None and wrong.kind == "mismatch" and wrong.message.startswith("output 0: 4 of 4")


FLOATS = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
VALUES = [2.0, 0.0, math.inf, -math.inf, math.nan]


def made(dtype: str, *values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype))


def compared(got: torch.Tensor, want: torch.Tensor, **options: Any) -> Mismatch | None:
    """Judge a kernel that writes `got` where the reference gives `want`."""
    output = KernelParam(str(got.dtype).removeprefix("torch."), tuple(got.shape))
    return judge(workload(reference=lambda x: want, **options), lambda x, out: out.copy_(got), X, output)


def alike(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


@pytest.mark.parametrize("options", [{}, {"rtol": 0.5, "atol": 1e30}])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_tolerance_counts_only_where_both_are_finite(dtype: str, options: dict[str, Any]) -> None:
    """All pairs of the values that the dtype has, beside an element that is right."""
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    values = [value for value in VALUES if alike(made(dtype, value).double().item(), value)]
    assert len(values) == {"e4m3fn": 3, "e4m3fnuz": 3, "e5m2fnuz": 3, "e8m0fnu": 2}.get(
        dtype.removeprefix("float8_"), 5
    )
    for want in values:
        for got in values:
            wrong = compared(made(dtype, got, 1.0), made(dtype, want, 1.0), **options)
            within = bool(options) and math.isfinite(got) and math.isfinite(want)
            assert (wrong is None) == (within or alike(got, want)), (got, want, wrong)
            if wrong is not None and math.isfinite(want):
                assert wrong.kind == ("mismatch" if math.isfinite(got) else "non_finite")
            elif wrong is not None:
                assert wrong.kind == "mismatch" and wrong.message.startswith("output 0: 1 of 2 elements differ")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"])
def test_whole_numbers_are_what_the_reference_gives_and_nothing_that_is_not_finite(dtype: str) -> None:
    for want in (0.0, 1.0, math.inf, -math.inf, math.nan):
        for got in (0, 1):
            for options in ({}, {"rtol": 0.5, "atol": 0.25}):
                wrong = compared(made(dtype, got, 1), made("float32", want, 1), **options)
                assert (wrong is None) == (got == want), (got, want, options)


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if "8" not in dtype])
@pytest.mark.parametrize("part", [1.0, 1e-4, 0.5e-30])
def test_the_scale_neither_overflows_nor_counts_what_is_not_finite(dtype: str, part: float) -> None:
    """A root mean square whose squares overflow or vanish, in the dtype or in float64, is still one."""
    values = torch.finfo(getattr(torch, dtype))
    large = values.max * part if part > 1e-20 else values.tiny
    assert compared(made(dtype, large, 0, math.inf), made(dtype, large, 0, math.inf)) is None
    for got in ((0, 0, math.inf), (-large, 0, math.inf), (large, large, math.inf)):
        wrong = compared(made(dtype, *got), made(dtype, large, 0, math.inf))
        assert wrong is not None and wrong.message.startswith("output 0: 1 of 3 elements differ"), got
        [said] = re.findall(r"atol (\S+):", wrong.message)
        rtol = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}[dtype]
        assert float(said) == pytest.approx(rtol * made(dtype, large).item() / math.sqrt(2), rel=0.01)


def outliers(kind: str) -> torch.Tensor:
    """Values of about 1, with some of 1e7."""
    ones = torch.rand(300, 128, generator=torch.Generator().manual_seed(0)) + 0.5
    match kind:
        case "columns":
            ones[:, ::8] = 1e7
        case "rows":
            ones[::10] = 1e7
        case "half":
            ones[torch.rand(ones.shape, generator=torch.Generator().manual_seed(1)) < 0.5] = 1e7
    return ones


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if "8" not in dtype])
@pytest.mark.parametrize("kind", ["columns", "rows", "half"])
def test_large_values_let_no_zeros_pass(kind: str, dtype: str) -> None:
    right = outliers(kind).to(getattr(torch, dtype)).clamp(max=6e4)
    part = right < 10
    assert compared(right, right) is None
    wrong = compared(right.masked_fill(part, 0), right)
    n = int(part.sum())
    assert wrong is not None and wrong.message.startswith(f"output 0: {n} of {right.numel()} elements differ"), wrong


@pytest.mark.parametrize("scale", ["one", "rows", "columns"])
def test_a_sum_in_parts_is_right_whatever_the_scale_of_its_row_or_column(scale: str) -> None:
    """A product in bfloat16 whose eight parts are rounded, as split kernels make it. Nearly all zeros are found."""
    torch.manual_seed(0)
    a, b = torch.randn(96, 4096), torch.randn(4096, 80)
    a = a * torch.logspace(0, 4, 96)[:, None] if scale == "rows" else a
    b = b * torch.logspace(0, 4, 80)[torch.randperm(80)] if scale == "columns" else b
    right = (a @ b).bfloat16()
    parts = [(x @ y).bfloat16() for x, y in zip(a.split(512, 1), b.split(512, 0), strict=True)]
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    assert compared(found, right) is None
    wrong = compared(found * 0, right)
    assert wrong is not None and int(re.findall(r": (\d+) of", wrong.message)[0]) > 0.9 * right.numel()


def test_zeros_of_a_reference_count_as_no_size() -> None:
    """Most of the outputs are zero: others may be as near to zero as the rest allows."""
    right = torch.zeros(64, 64)
    right[::8, ::8] = 1.0
    assert compared(right + 0.5e-4 * 0.125, right) is None and compared(right + 1e-3, right) is not None


def test_whole_numbers_and_empty_outputs_have_no_usual_size() -> None:
    numbers = torch.arange(1, 200)
    off = numbers + (numbers == 1)
    assert compared(off, numbers, rtol=0.5) is not None and compared(off, numbers, rtol=0.0, atol=1) is None
    empty = KernelParam("float32", (0, 4))
    work = workload(reference=lambda x: (x * 2, torch.empty(0, 4)), out_idx=[1, 2])
    assert judge(work, lambda x, out, none: double(x, out), X, X, empty) is None


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_outputs_are_compared_whole(dtype: str) -> None:
    right = torch.randn(8, 4, dtype=getattr(torch, dtype))
    param = KernelParam(dtype, (8, 4))

    def judged_as(out: torch.Tensor, **options: Any) -> Mismatch | None:
        work = workload(reference=lambda x: right.conj().conj_physical(), out_idx=[1], **options)
        found = arguments(work, X, param)
        found.values[1].copy_(out)
        return judged(work, found, expected_outputs(work, found), {})[0]

    assert judged_as(right) is None and judged_as(right * (1 + 1e-12)) is None
    for other in (right.conj(), right.real.to(right), right + 0.5j, right.masked_fill(right == right[2, 1], math.nan)):
        assert judged_as(other) is not None
    wrong = judged_as(right + 0.5j)
    assert wrong is not None and wrong.message.startswith("output 0: 32 of 32 elements differ")
    assert judged_as(right + 0.5j, atol=0.6) is None


def test_an_infinite_tolerance_is_refused() -> None:
    """It comes of what is given and the reference's values."""
    for options in ({"rtol": 1e300}, {"rtol": 1e300, "atol": 0.0}):
        wrong = compared(made("float64", 1e9), made("float64", 1e9), **options)
        assert wrong is not None and "rtol 1e+300 makes the tolerance infinite for reference values" in wrong.message


def test_a_complex_reference_is_not_compared_by_its_real_part() -> None:
    wrong = compared(torch.ones(2), torch.tensor([1 + 2j, 1]))
    assert wrong == Mismatch("mismatch", "output 0: shape [2], but the reference's is complex [2]")


def test_a_check_that_answers_nan_or_a_tensor_is_not_content() -> None:
    with pytest.raises(
        WorkloadError, match="the check returned a Tensor, and converting it to bool raised RuntimeError: Boolean"
    ):
        judge(workload(check=lambda inputs, outputs: outputs[0] > 0), double, X, X)
    for nan in (math.nan, torch.tensor(math.nan)):
        wrong = judge(workload(check=lambda inputs, outputs, nan=nan: nan), double, X, X)
        assert wrong == Mismatch("mismatch", "the check returned NaN")
    large = judge(workload(check=lambda inputs, outputs: False), lambda x, out: out.fill_(1e300), X, X64)
    assert large == Mismatch("mismatch", "the check returned a false value")


@pytest.mark.parametrize("factor", [2, 3], ids=["right", "wrong"])
def test_a_check_that_answers_neither_yes_nor_no_is_the_users_mistake(factor: int) -> None:
    def check(out: Any, ref: Any) -> Any:
        return [torch.allclose(*pair) for pair in zip(out, ref, strict=True)]

    with pytest.raises(WorkloadError, match="the check returned a list; it must return True or False") as caught:
        judge(workload(reference=lambda x: x * 2, check=check), lambda x, out: out.copy_(x * factor), X, X)
    assert f'File "{__file__}", line {check.__code__.co_firstlineno}, in {check.__name__}' in str(caught.value)


def test_inputs_that_are_written_are_restored_before_each_call() -> None:
    made = arguments(workload(restore=[0]), X, X, X)
    pristine = made.values[0].clone()
    restore = made.restorer({1})
    assert restore is not None and made.restorer(()) is not None
    second = made.values[1].clone()
    made.values[0].zero_(), made.values[1].zero_()
    restore()
    assert torch.equal(made.values[0], pristine) and torch.equal(made.values[1], second)
    assert arguments(workload(), X, X).restorer(()) is None


def test_the_timer_restores_before_each_call_and_does_not_time_it() -> None:
    import time

    calls: list[str] = []
    timed = Timed(lambda: calls.append("call"), lambda: (calls.append("before"), time.sleep(0.01)))
    timer = CpuTimer(DeviceStream("cpu"))
    samples = timer.samples(timed, 1, 3)
    assert calls == ["before", "call"] * 4 and max(samples) < 5_000
    found = timer.interleaved([timed, Timed(lambda: None)], 4, 1)
    assert [len(f) for f in found] == [4, 4] and max(found[0]) < 5_000


def test_samples_that_scatter_are_followed_by_more() -> None:
    """Until the median is known within half a percent, a limit is reached, or the calls are long."""
    steady, wide = [100.0, 100.2] * 10, [100.0, 104.0] * 10
    assert still_wanted(steady, 20, None, until_known=True) == 0 == still_wanted(wide, 20, None)
    assert still_wanted(wide, 20, None, until_known=True) == 20 == still_wanted(wide, 20, 0.1, until_known=True)
    assert still_wanted(wide * 4, 20, None, until_known=True) == 0
    assert still_wanted([100 * s for s in wide], 20, None, until_known=True) == 0
    assert still_wanted([100.0, 101.0, 102.0], 3, None, until_known=True) == 0  # too few to tell
    assert still_wanted([1600.0] * 3, 20, 1.0, until_known=True) == 0


def test_warm_up_and_repeats_may_be_times() -> None:
    assert counts(BenchmarkSettings(n_warmup=5, n_repeat=7), 100.0) == (5, 7)
    assert counts(BenchmarkSettings(warmup_ms=1, rep_ms=10), 100.0) == (10, 100)
    assert counts(BenchmarkSettings(rep_ms=1), 1e6) == (3, 3)
    with pytest.raises(UsageError, match="rep_ms"):
        BenchmarkSettings(rep_ms=0)


def test_digits_that_differ_are_in_the_message() -> None:
    wrong = compared(made("float64", 2 + 1e-6), made("float64", 2), rtol=1e-9, atol=0)
    assert wrong is not None
    ours, theirs = wrong.message.partition(": first at [0], ")[2].partition(";")[0].split(" instead of ")
    assert ours != theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("n", [0, 1, 8, 1000, 9_000_001])
def test_a_digest_is_equal_for_equal_bits_alone(dtype: torch.dtype, n: int) -> None:
    data = torch.randint(0, 2, (n,)).to(dtype)
    before = digest_of_bits([data])
    assert digest_of_bits([data.clone()]) == before == digest_of_bits([torch.stack([data, data], 1)[:, 0]])
    assert digest_of_bits([data, data[:0]]) == digest_of_bits([data, data[:0]])
    for at in {0, n // 2, n - 1} if n else set():
        data[at] = 1 - data[at].to(torch.int64)
        assert digest_of_bits([data]) != before
        data[at] = 1 - data[at].to(torch.int64)
    if n > 8:
        data[0], data[n - 1] = 0, 1
        assert digest_of_bits([data]) != digest_of_bits([data.flip(0)])


def test_a_digest_tells_zeros_by_their_sign_and_tensors_by_their_size() -> None:
    assert digest_of_bits([torch.zeros(4)]) != digest_of_bits([-torch.zeros(4)])
    assert digest_of_bits([torch.zeros(4)]) != digest_of_bits([torch.zeros(6)])
