"""Outputs against the reference's: what is expected, and where and how much a candidate differs from it."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from atune.errors import WorkloadError, message_of, name_and_message, name_of
from atune.model.artifact import FailureKind
from atune.stages.measure.device_errors import kind_of
from atune.stages.measure.differences import apart, passing_rtol
from atune.stages.measure.inputs import Arguments, same_bits
from atune.system.places import located
from atune.workload.workload import Workload

RTOL = {
    "float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2,
    "float8_e4m3fn": 0.125, "float8_e5m2": 0.25,
}  # fmt: skip
"""Default relative tolerance by output dtype: some units of its last place, with room for another order of summing.
The default absolute tolerance is this times the reference's root mean square, so that it follows the data's scale."""


class Mismatch(msgspec.Struct, frozen=True):
    """How outputs differ from the reference."""

    kind: FailureKind
    message: str


Expected = dict[int, Any]
"""The reference's tensors by the position of the kernel's parameter: returned ones and those it wrote into. Empty for a
reference that gives no tensors, but judges the kernel's: see `expected_outputs`."""


def expected_outputs(work: Workload, arguments: Arguments) -> Expected:
    """Run the reference on copies of the inputs. Raises `WorkloadError` where it raises or answers nothing.

    What it returns are the output parameters, in order. One that takes every parameter, and returns nothing, writes
    into the outputs. Inputs that it writes into are expected to be written likewise. One that is given the outputs and
    answers with a truth value, or raises AssertionError, judges: it expects nothing, and is asked for each candidate.
    """
    import torch

    assert work.reference is not None
    inputs = arguments.copies()
    fresh = [torch.zeros_like(output) for output in arguments.outputs]
    everything = takes(work.reference, len(arguments.params)) and not takes(work.reference, len(inputs))
    given = inputs
    if everything:
        by_position = dict(zip(arguments.in_idx, inputs, strict=True)) | dict(
            zip(arguments.out_idx, fresh, strict=True)
        )
        given = [by_position[i] for i in range(len(arguments.params))]
    sees_outputs = everything or not arguments.out_idx
    try:
        answer = work.reference(*given)
    except BaseException as error:
        if sees_outputs and isinstance(error, AssertionError):
            return {}
        said = f"Workload {work.name}: the reference raised {name_and_message(error)}"
        raise WorkloadError(located(said, error)) from error
    if sees_outputs and isinstance(answer, bool):
        return {}
    found = fresh if everything and answer is None else _listed(answer)
    expected: Expected = {}
    for i, value, pristine in zip(arguments.in_idx, inputs, arguments.copies(), strict=True):
        if isinstance(value, torch.Tensor) and not same_bits(value, pristine):
            expected[i] = value
    if not found and expected and not arguments.out_idx:
        return expected
    if len(found) != len(arguments.outputs) or not found or not all(isinstance(t, torch.Tensor) for t in found):
        raise WorkloadError(
            f"Workload {work.name}: the reference returned {[type(t).__name__ for t in found]}; "
            f"the kernel has {len(arguments.outputs)} output(s), by out_idx {work.out_idx}"
        )
    return expected | {i: t.to(arguments.values[i].device) for i, t in zip(arguments.out_idx, found, strict=True)}


def _listed(answer: Any) -> list[Any]:
    if answer is None:
        return []
    return list(answer) if isinstance(answer, (tuple, list)) else [answer]


def takes(function: Any, n: int) -> bool:
    """Tell whether `function` can be called with `n` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * n)
    except (TypeError, ValueError):
        return False
    return True


def reference_arguments(work: Workload, arguments: Arguments) -> list[Any]:
    """Return what the reference is called with when it is timed: copies of its own."""
    inputs = arguments.copies()
    if not takes(work.reference, len(arguments.params)) or takes(work.reference, len(inputs)):
        return inputs
    by_position = dict(zip(arguments.in_idx, inputs, strict=True))
    by_position |= {i: arguments.values[i].clone() for i in arguments.out_idx}
    return [by_position[i] for i in range(len(arguments.params))]


def judged(work: Workload, arguments: Arguments, expected: Expected | None) -> tuple[Mismatch | None, float | None]:
    """Return what is wrong with the outputs, if anything, and the largest absolute difference where it is known."""
    if expected is not None and not expected:
        return _judged_by_reference(work, arguments), None
    if work.check is None:
        assert expected is not None
        return compare(work, arguments, expected)
    outputs = {i: arguments.values[i] for i in (expected if expected is not None else arguments.out_idx)}
    other = arguments.copies() if expected is None else list(expected.values())
    try:
        answer = work.check(
            *((list(outputs.values()), other) if expected is not None else (other, list(outputs.values())))
        )
        right = answer is None or bool(answer)
    except BaseException as error:
        why = _objection("check", error, arguments)
    else:
        if right:
            return None, None
        why = "the check returned a false value"
    return _worst_kind(outputs, arguments, why), None


def _judged_by_reference(work: Workload, arguments: Arguments) -> Mismatch | None:
    assert work.reference is not None
    outputs = {i: arguments.values[i] for i in arguments.out_idx}
    try:
        answer = work.reference(*(v.clone() if hasattr(v, "clone") else v for v in arguments.values))
        right = answer is None or bool(answer)
    except BaseException as error:
        why = _objection("reference", error, arguments)
    else:
        if right:
            return None
        why = "the reference returned a false value"
    return _worst_kind(outputs, arguments, why)


def _worst_kind(outputs: dict[int, Any], arguments: Arguments, why: str) -> Mismatch:
    import torch

    for i, output in outputs.items():
        if i in arguments.out_idx and i not in arguments.zero and (n := int(_poisoned(output).sum().item())):
            return Mismatch("unwritten", f"{why}; output {i}: {n} of {output.numel()} elements were not written")
        if output.dtype.is_floating_point and not bool(torch.isfinite(output.to(torch.float32)).all()):
            return Mismatch("non_finite", f"{why}; output {i} holds NaN or infinity")
    return Mismatch("mismatch", why)


def _objection(judge: str, error: BaseException, arguments: Arguments) -> str:
    """Return the message of a check that raised. Raises `error` again if the device reports it: it has own kinds."""
    on_device = any(getattr(value, "is_cuda", False) for value in arguments.values)
    if on_device and isinstance(error, RuntimeError) and kind_of(error) != "launch":
        raise error
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    said = " ".join(lines[:3])[:300]
    if isinstance(error, AssertionError):
        return f"the {judge} says: {said or name_of(error)}"
    return f"the {judge} raised {name_of(error)}: {said}"


def compare(
    work: Workload, arguments: Arguments, expected: Expected, outputs: Expected | None = None
) -> tuple[Mismatch | None, float]:
    """Compare with the reference's tensors, elementwise: the kernel's, or `outputs` in their place."""
    worst = 0.0
    for i, ref in sorted(expected.items()):
        label = f"output {arguments.out_idx.index(i)}" if i in arguments.out_idx else f"parameter {i}"
        out, poisoned = (arguments.values[i], i in arguments.out_idx) if outputs is None else (outputs[i], False)
        wrong, difference = _compared(work, label, out, ref, poisoned)
        worst = max(worst, difference)
        if wrong is not None:
            return wrong, worst
    return None, worst


def _compared(work: Workload, label: str, out: Any, ref: Any, poisoned: bool) -> tuple[Mismatch | None, float]:
    import torch

    if out.shape != ref.shape:
        return Mismatch("mismatch", f"{label}: shape {list(out.shape)}, the reference's is {list(ref.shape)}"), 0.0
    written = ~_poisoned(out) if poisoned else torch.ones_like(out, dtype=torch.bool)
    exact = not out.dtype.is_floating_point
    wide = torch.float32 if not exact and out.element_size() <= 2 and ref.element_size() <= 2 else torch.float64
    got, want = out.to(wide), ref.to(wide)
    name = str(out.dtype).removeprefix("torch.")
    rtol = work.rtol if work.rtol is not None else (0.0 if exact else RTOL.get(name, 1e-2))
    scale = want[torch.isfinite(want)].square().mean().sqrt().item() if want.numel() and not exact else 0.0
    atol = work.atol if work.atol is not None else rtol * (scale if scale == scale else 1.0)
    difference = (got - want).abs()
    bad = ~((difference <= atol + rtol * want.abs()) | (got == want) | (got.isnan() & want.isnan() & written))
    if exact and rtol == atol == 0:
        bad = out != ref  # not rounded: large integers differ by less than the wide type tells
    finite = difference[torch.isfinite(difference)]
    worst = finite.max().item() if finite.numel() else 0.0
    count = int(bad.sum().item())
    if count <= work.max_mismatched_ratio * out.numel():
        return None, worst
    first = [int(i) for i in bad.nonzero()[0]]
    at = tuple(first)
    where = f"{label}: {count} of {out.numel()} elements"
    unwritten = int((bad & ~written).sum().item())
    if unwritten == count:
        return Mismatch("unwritten", f"{where} were not written, the first at {first}"), worst
    lost = int((bad & ~torch.isfinite(got) & torch.isfinite(want)).sum().item())
    if lost == count:
        return Mismatch("non_finite", f"{where} are NaN or infinite, the first at {first}"), worst
    ours, theirs = apart(*(tensor[at].item() for tensor in ((out, ref) if exact else (got, want))))
    detail = (
        f"{where} differ by more than rtol {rtol:g}, atol {atol:.3g}: first at {first}, "
        f"{ours} and not {theirs}; largest difference {worst:.3g}"
    )
    if unwritten:
        detail += f"; {unwritten} of them were not written"
    most = int(work.max_mismatched_ratio * out.numel())
    if not exact and (enough := passing_rtol(difference, want, scale, work.atol, most)):
        detail += f"; would pass with rtol ≥ {enough}"
    return Mismatch("mismatch", detail), worst


def _poisoned(tensor: Any) -> Any:
    return bits_of(tensor) == (0xFF if tensor.element_size() == 1 else -1)


def bits_of(tensor: Any) -> Any:
    """Return a tensor's elements as integers of their size, in the same memory."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(whole[tensor.element_size()])
