"""Outputs against the reference's: what is expected, and where and how much a candidate differs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atune.errors import WorkloadError, message_of, name_and_message, name_of, type_of
from atune.model.artifact import FailureKind
from atune.stages.measure.arguments import KernelArguments
from atune.stages.measure.telemetry import kind_of
from atune.stages.measure.tensors import same_bits
from atune.workload.source_locations import located
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


def expected_outputs(work: Workload, arguments: KernelArguments) -> Expected:
    """Run the reference on copies of the inputs. Raises `WorkloadError` where it raises or answers nothing.

    What it returns are the output parameters, in order, or all that the kernel may write into. One that takes every
    parameter, and returns nothing, writes into the outputs. Inputs that it writes into are expected to be written
    likewise. One that is given the outputs and answers with a truth value, or raises AssertionError, judges: it expects
    nothing, and is asked for each candidate.
    """
    import torch

    assert work.reference is not None
    out_idx, positions, inputs = arguments.out_idx, _taken(work, arguments), arguments.copies()
    fresh = [torch.zeros_like(output) for output in arguments.outputs]
    given = dict(zip((*arguments.in_idx, *out_idx), (*inputs, *fresh), strict=True))
    sees_outputs = len(positions) == len(arguments.params)
    try:
        answer = work.reference(*[given[i] for i in positions])
    except BaseException as error:
        if sees_outputs and isinstance(error, AssertionError):
            return {}
        message = f"Workload {work.name}: the reference raised {name_and_message(error)}"
        if not takes(work.reference, len(positions)):
            message += f"; it gets the kernel's inputs, and there are {arguments.described}"
        raise WorkloadError(located(message, error)) from error
    if sees_outputs and isinstance(answer, bool):
        return {}
    found = fresh if out_idx and sees_outputs and answer is None else _listed(answer)
    expected: Expected = {}
    for i, value, pristine in zip(arguments.in_idx, inputs, arguments.copies(), strict=True):
        if isinstance(value, torch.Tensor) and not same_bits(value, pristine):
            expected[i] = value
    if not found and expected and not out_idx:
        return expected
    returned = out_idx if len(found) == len(out_idx) else tuple(sorted({*out_idx, *arguments.writes}))
    if len(found) != len(returned) or not found or not all(isinstance(t, torch.Tensor) for t in found):
        raise WorkloadError(
            f"Workload {work.name}: the reference returned {_kinds(found)}; the kernel has {arguments.described}"
        )
    return expected | {i: t.to(arguments.values[i].device) for i, t in zip(returned, found, strict=True)}


def _kinds(found: Sequence[Any]) -> str:
    return ", ".join(type_of(one) for one in found) or "None"


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


def reference_arguments(work: Workload, arguments: KernelArguments) -> list[Any]:
    """Return what the reference is called with when it is timed: copies of its own."""
    copies = dict(zip(arguments.in_idx, arguments.copies(), strict=True))
    return [copies[i] if i in copies else arguments.values[i].clone() for i in _taken(work, arguments)]


def _taken(work: Workload, arguments: KernelArguments) -> Sequence[int]:
    """Return the parameters that the reference takes: the inputs, all, or the inputs that the kernel does not write."""
    pure = [i for i in arguments.in_idx if i not in arguments.writes]
    ways = (arguments.in_idx, range(len(arguments.params)), pure)
    return next((way for way in ways if takes(work.reference, len(way))), arguments.in_idx)


Unwritten = dict[int, Any]
"""Which elements of the outputs a call did not write, as masks, by the position of the kernel's parameter."""


def judged(
    work: Workload, arguments: KernelArguments, expected: Expected | None, unwritten: Unwritten
) -> tuple[Mismatch | None, float | None]:
    """Return what is wrong with the outputs, if anything, and the largest absolute difference where it is known.

    An output that is `unwritten` in part is wrong also where nothing is expected, and nobody asks.
    """
    wrong, worst = _judged(work, arguments, expected, unwritten)
    if wrong is None and unwritten:
        i, mask = next(iter(unwritten.items()))
        return Mismatch("unwritten", _unwritten_of(f"output {arguments.out_idx.index(i)}", mask)), worst
    return wrong, worst


def _unwritten_of(label: str, mask: Any) -> str:
    first = [int(i) for i in mask.nonzero()[0]]
    return f"{label}: {int(mask.sum().item())} of {mask.numel()} elements were not written, the first at {first}"


def _judged(
    work: Workload, arguments: KernelArguments, expected: Expected | None, unwritten: Unwritten
) -> tuple[Mismatch | None, float | None]:
    if expected is not None and not expected:
        return _judged_by_reference(work, arguments, unwritten), None
    if work.check is None:
        return (None, None) if expected is None else compare(work, arguments, expected, unwritten)
    asked = expected if expected is not None else arguments.out_idx or arguments.writes
    outputs = {i: arguments.values[i] for i in asked}
    given = list(outputs.values())
    pair = (arguments.copies(), given) if expected is None else (given, list(expected.values()))
    return _answered("check", work.check, pair, outputs, unwritten), None


def _judged_by_reference(work: Workload, arguments: KernelArguments, unwritten: Unwritten) -> Mismatch | None:
    assert work.reference is not None
    outputs = {i: arguments.values[i] for i in arguments.out_idx}
    copies = [value.clone() if hasattr(value, "clone") else value for value in arguments.values]
    return _answered("reference", work.reference, copies, outputs, unwritten)


def _answered(
    judge: str, function: Callable[..., Any], given: Sequence[Any], outputs: dict[int, Any], unwritten: Unwritten
) -> Mismatch | None:
    """Ask a function of the user's about `outputs`: it is content with None or a true value."""
    try:
        answer = function(*given)
        right = answer is None or bool(answer and answer == answer)  # NaN is true in Python
    except BaseException as error:
        why = _objection(judge, error, outputs)
    else:
        if right:
            return None
        why = f"the {judge} returned {'NaN' if answer else 'a false value'}"
    return _worst_kind(outputs, unwritten, why)


def _worst_kind(outputs: dict[int, Any], unwritten: Unwritten, why: str) -> Mismatch:
    import torch

    for i, output in outputs.items():
        if i in unwritten:
            return Mismatch("unwritten", f"{why}; {_unwritten_of(f'output {i}', unwritten[i])}")
        if output.dtype.is_floating_point and not bool(torch.isfinite(output.to(torch.float64)).all()):
            return Mismatch("non_finite", f"{why}; output {i} holds NaN or infinity")
    return Mismatch("mismatch", why)


def _objection(judge: str, error: BaseException, outputs: dict[int, Any]) -> str:
    """Return the message of a check that raised. Raises `error` again if the device reports it: it has own kinds."""
    on_device = any(getattr(value, "is_cuda", False) for value in outputs.values())
    if on_device and isinstance(error, RuntimeError) and kind_of(error) != "launch":
        raise error
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    message = " ".join(lines[:3])[:300]
    if isinstance(error, AssertionError):
        return f"the {judge} says: {message or name_of(error)}"
    return f"the {judge} raised {name_of(error)}: {message}"


def compare(
    work: Workload, arguments: KernelArguments, expected: Expected, unwritten: Unwritten
) -> tuple[Mismatch | None, float]:
    """Compare the kernel's outputs with the reference's tensors, elementwise. What is `unwritten` is wrong."""
    worst = 0.0
    for i, ref in sorted(expected.items()):
        label = f"output {arguments.out_idx.index(i)}" if i in arguments.out_idx else f"parameter {i}"
        wrong, difference = _compared(work, label, arguments.values[i], ref, unwritten.get(i))
        worst = max(worst, difference)
        if wrong is not None:
            return wrong, worst
    return None, worst


def _compared(work: Workload, label: str, out: Any, ref: Any, unwritten: Any) -> tuple[Mismatch | None, float]:
    import torch

    if out.shape != ref.shape or out.is_complex() != ref.is_complex():
        theirs = f"{'complex ' if ref.is_complex() else ''}{list(ref.shape)}"
        return Mismatch("mismatch", f"{label}: shape {list(out.shape)}, the reference's is {theirs}"), 0.0
    written = torch.ones_like(out, dtype=torch.bool) if unwritten is None else ~unwritten
    exact = not out.dtype.is_floating_point
    wide = torch.float32 if not exact and out.element_size() <= 2 and ref.element_size() <= 2 else torch.float64
    got, want = out.to(wide), ref.to(wide)
    name = str(out.dtype).removeprefix("torch.")
    rtol = work.rtol if work.rtol is not None else (0.0 if exact else RTOL.get(name, 1e-2))
    scale, largest = (0.0, 0.0) if exact else scale_of(want)
    atol = work.atol if work.atol is not None else rtol * scale
    if not math.isfinite(atol + rtol * largest):
        infinite = f"rtol {rtol:g} is an infinite tolerance for the reference's values, up to {largest:.3g}: give less"
        return Mismatch("mismatch", f"{label}: {infinite}"), 0.0
    difference = (got - want).abs()
    finite = difference < math.inf  # no tolerance counts where one is infinite or NaN
    near = finite & (difference <= atol + rtol * want.abs())
    bad = ~(near | (got == want) | (got.isnan() & want.isnan() & written))
    if exact and rtol == atol == 0:
        bad = out != ref  # not rounded: large integers differ by less than the wide type tells
    bad |= ~written
    worst = difference.masked_fill(~finite, 0).max().item() if out.numel() else 0.0
    count = int(bad.sum().item())
    if count <= work.max_mismatched_ratio * out.numel():
        return None, worst
    first = [int(i) for i in bad.nonzero()[0]]
    at = tuple(first)
    where = f"{label}: {count} of {out.numel()} elements"
    kept = int((~written).sum().item())
    if kept == count:
        return Mismatch("unwritten", f"{where} were not written, the first at {first}"), worst
    lost = int((bad & ~torch.isfinite(got) & torch.isfinite(want)).sum().item())
    if lost == count:
        return Mismatch("non_finite", f"{where} are NaN or infinite, the first at {first}"), worst
    ours, theirs = apart(*(tensor[at].item() for tensor in ((out, ref) if exact else (got, want))))
    detail = (
        f"{where} differ by more than rtol {rtol:g}, atol {atol:.3g}: first at {first}, "
        f"{ours} and not {theirs}; largest difference {worst:.3g}"
    )
    for what, there in (("NaN", want.isnan()), ("infinity", want.isinf())):
        if bool((bad & there).any()):
            detail += f"; the reference has {what} in {int(there.sum())} of {out.numel()}"
    if kept:
        detail += f"; {kept} of them were not written"
    most = int(work.max_mismatched_ratio * out.numel())
    if not exact and (enough := passing_rtol(difference.masked_fill(~bad, 0), want, scale, work.atol, most)):
        detail += f"; would pass with rtol ≥ {enough}"
    return Mismatch("mismatch", detail), worst


def scale_of(tensor: Any) -> tuple[float, float]:
    """Return the root mean square and the largest absolute value of what is finite in a tensor; zeros without any."""
    import torch

    sizes = tensor.abs()
    finite = sizes < math.inf
    sizes.masked_fill_(~finite, 0)
    if not bool(sizes.any()):
        return 0.0, 0.0
    largest = sizes.max()
    norm = torch.linalg.vector_norm(sizes.div_(largest), dtype=torch.float64)  # its squares do not overflow
    return largest.item() * (norm.item() / math.sqrt(finite.sum().item())), largest.item()


MOST_RTOL = 0.5
"""A tolerance above this is no advice: the outputs are plainly others."""


def apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers as text, with as many digits, six at least, as tell them apart."""
    if isinstance(one, int) and isinstance(other, int):
        return str(int(one)), str(int(other))
    digits = 6
    while digits < 17 and one != other and f"{one:.{digits}g}" == f"{other:.{digits}g}":
        digits += 1
    return f"{one:.{digits}g}", f"{other:.{digits}g}"


def passing_rtol(difference: Any, want: Any, scale: float, atol: float | None, most: int) -> str:
    """Return the least rtol with which no more than `most` elements are wrong, as text; empty where that is no advice.

    `difference`, `want`: tensors of the absolute difference and the reference. `scale`: what rtol is multiplied with to
    make the absolute tolerance; `atol`: that tolerance where it was given, None where it follows rtol.
    """
    import torch

    above, size = difference / 2, want.abs() / 2  # halves, whose sum does not overflow
    above, size = (above, scale / 2 + size) if atol is None else ((above - atol / 2).clamp(min=0), size)
    needed = (above / size).masked_fill(above == 0, 0.0).flatten().nan_to_num(nan=math.inf, posinf=math.inf)
    least = torch.kthvalue(needed, needed.numel() - most).values.item() if most < needed.numel() else 0.0
    return _upwards(least) if 0 < least <= MOST_RTOL else ""


def _upwards(value: float) -> str:
    """Return a number above zero with two digits, rounded up."""
    digits = 1 - math.floor(math.log10(value))
    return f"{math.ceil(value * (1 + 1e-6) * 10.0**digits) / 10.0**digits:.2g}"
