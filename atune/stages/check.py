"""Check a candidate's outputs: compare them with the outputs of the reference, or call the user's check."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from atune.errors import WorkloadError, asked, message_of, name_and_message, name_of, type_of
from atune.model.artifact import FailureKind
from atune.model.space import NoAnswer, defined, yes_or_no
from atune.stages.arguments import POISONS, KernelArguments, user_name
from atune.stages.gpu import kind_of
from atune.stages.session import session
from atune.stages.tensors import same_bits
from atune.workload.source_locations import ask
from atune.workload.workload import Workload

RTOL = {
    "float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2,
    "float8_e4m3fn": 0.125, "float8_e5m2": 0.25, "complex128": 1e-9, "complex64": 1e-4,
}  # fmt: skip
"""Default relative tolerance by output dtype: a few units in the last place, with room for another summation order.
The default absolute tolerance is the relative tolerance times the reference's `usual_sizes`."""
LONG = 32
"""Smallest length for which a row or column gets its own usual size."""
DRAWN_OF_LINE, DRAWN_OF_ALL = 64, 1 << 16
"""Largest numbers of values from which usual sizes are estimated: per row or column, and for a whole tensor."""


class Mismatch(msgspec.Struct, frozen=True):
    """A difference between a candidate's outputs and the reference."""

    kind: FailureKind
    message: str


class Expected(dict[int, Any]):
    """Tensors that the reference returned or wrote into, by the position of the tensor's parameter."""

    @functools.cached_property
    def sizes(self) -> dict[int, list[Any]]:
        """Usual sizes of the values in each tensor, by the tensor's position."""
        return {i: usual_sizes(tensor) for i, tensor in self.items() if tensor.numel()}


def expected_outputs(work: Workload, arguments: KernelArguments) -> Expected | None:
    """Run the reference on copies of the inputs, and return its tensors; None if the reference judges outputs itself.

    The reference must return the outputs in order, or all parameters that the kernel may write into. A reference that
    takes every parameter may instead write into the outputs. If the reference writes into inputs, the kernel must write
    the same values. Raises `WorkloadError` if the reference raises an error, returns anything else, or writes into an
    input that the kernel does not write.
    """
    import torch

    reference = work.reference
    assert reference is not None
    if _judges(work, arguments):
        return None
    out_idx, positions, given = arguments.out_idx, reference_positions(work, arguments), arguments.fresh()
    hint = f"the function gets the kernel's inputs; the kernel has {arguments.described}"
    name = f"Workload {work.name}: {user_name(work, 'the reference')}"
    answer = ask(name, lambda: reference(*[given[i] for i in positions]), hint)
    tensors = list(answer) if isinstance(answer, (tuple, list)) else [] if answer is None else [answer]
    if not tensors and len(positions) == len(arguments.params):
        tensors = [given[i] for i in out_idx]
    expected = Expected()
    for i, pristine in zip(arguments.in_idx, arguments.copies(), strict=True):
        if isinstance(given[i], torch.Tensor) and not same_bits(given[i], pristine):
            if i not in arguments.writes and work.check is None and session().benchmark.check:
                why = f"changed its input {arguments.labels[i]}, which the kernel does not write"
                raise WorkloadError(f"{name} {why}. Let the function work on a copy, such as tensor.clone()")
            expected[i] = given[i]
    if not tensors and expected and not out_idx:
        return expected
    returned = out_idx if len(tensors) == len(out_idx) else tuple(sorted({*out_idx, *arguments.writes}))
    if len(tensors) != len(returned) or not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        kinds = ", ".join(map(type_of, tensors)) or "None"
        must = f"but must return a torch tensor for each output; the kernel has {arguments.described}"
        how = "let it take every parameter, without manual_check_prog" if work.like_tilelang else "pass it as check="
        must += f". If the function judges outputs, {how}" if isinstance(answer, bool) else ""
        raise WorkloadError(f"{name} returned {kinds}, {must}")
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_meta:
            problem = "without values, on device meta" if tensor.is_meta else f"of layout {tensor.layout}, not strided"
            raise WorkloadError(f"{name} returned a tensor {problem}")
    for i, tensor in zip(returned, tensors, strict=True):
        expected[i] = tensor.resolve_conj().resolve_neg().to(arguments.values[i].device)
    return expected


def _judges(work: Workload, arguments: KernelArguments) -> bool:
    """Tell whether a `ref_prog` judges outputs itself: for wrong outputs, it returns a boolean or raises an error."""
    function: Any = work.reference
    n = len(arguments.params)
    if not work.like_tilelang or work.check is not None or len(reference_positions(work, arguments)) != n:
        return False
    flags = [v.numel() for v in map(arguments.values.__getitem__, arguments.out_idx) if str(v.dtype) == "torch.bool"]
    for byte in (*POISONS, 0):  # comparing with NaN may find no error, and in float16 both poisons are NaN
        arguments.fill_outputs(byte)
        try:
            answer = function(*arguments.fresh({i: arguments.values[i] for i in arguments.out_idx}))
        except (NameError, TypeError, AttributeError, ImportError, LookupError):  # a mistake of the function itself
            return False
        except Exception as error:
            return kind_of(error) == "launch"
        if answer is not None:
            scalar = getattr(answer, "shape", None) == () and str(answer.dtype).endswith("bool") and 1 not in flags
            return isinstance(answer, bool) or scalar
    return False


def accepts(function: Any, n: int) -> bool:
    """Tell whether `function` can be called with `n` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * n)
    except (TypeError, ValueError):
        return False
    return True


def reference_positions(work: Workload, arguments: KernelArguments) -> Sequence[int]:
    """Return positions of the reference's arguments: inputs, all parameters, or inputs that the kernel only reads."""
    pure = [i for i in arguments.in_idx if i not in arguments.writes]
    ways: list[Sequence[int]] = [arguments.in_idx, range(len(arguments.params)), pure]
    ways.insert(0, ways[1] if arguments.roles.unnamed else ways[0])  # the choice of tilelang's tuner
    return next((way for way in ways if accepts(work.reference, len(way))), arguments.in_idx)


Unwritten = dict[int, Any]
"""Masks of output elements that a call did not write, by the position of the output's parameter."""


def judged(
    work: Workload, arguments: KernelArguments, expected: Expected | None, unwritten: Unwritten
) -> tuple[Mismatch | None, float | None]:
    """Judge the outputs. Return the mismatch, if any, and the largest absolute difference, if it is known.

    Unwritten elements are a mismatch even if the workload has neither a reference nor a check.
    """
    wrong, worst = None, None
    if work.check is None and expected is not None:
        wrong, worst = compare(work, arguments, expected, unwritten)
    elif work.check is not None or work.reference is not None:
        wrong = _checked(work, arguments, expected, unwritten)
    if wrong is None and unwritten:
        i, mask = next(iter(unwritten.items()))
        wrong = Mismatch("unwritten", _unwritten_of(arguments.labels[i], mask))
    return wrong, worst


def _unwritten_of(label: str, mask: Any) -> str:
    first = [int(i) for i in mask.nonzero()[0]]
    return f"{label}: {int(mask.sum().item())} of {mask.numel()} elements were not written, the first at {first}"


class _Objection(Exception):
    """A check, or a reference that judges outputs, raised an error. The message says why the outputs are wrong."""


def _checked(
    work: Workload, arguments: KernelArguments, expected: Expected | None, unwritten: Unwritten
) -> Mismatch | None:
    """Call the judge. None and True accept the outputs, False and NaN reject them. Otherwise raises `WorkloadError`."""
    check: Any = work.check
    name = user_name(work, "the reference" if check is None else "the check")
    outputs = {i: arguments.values[i] for i in expected or arguments.out_idx or arguments.writes}
    given = [[*outputs.values()]]
    if check is None:
        check, outputs = work.reference, {i: arguments.values[i] for i in (*arguments.out_idx, *arguments.writes)}
        given = arguments.fresh(outputs)
    elif expected is not None:
        given.append([*expected.values()])
    elif not work.like_tilelang:
        given.insert(0, arguments.copies())
    try:
        answer = asked(lambda: check(*given), lambda error: _Objection(_objection(name, error, outputs)), passes=False)
    except _Objection as error:
        return _refused(str(error), arguments, outputs, unwritten)
    accepted = _accepted(f"Workload {work.name}: {name}", check, answer)
    if not accepted:
        why = f"{name} returned {'NaN' if accepted is None else 'a false value'}"
        return _refused(why, arguments, outputs, unwritten)
    nan = [i for i, v in outputs.items() if v.dtype.is_floating_point and bool(v.float().isnan().any())]
    if not nan or work.check is not None or not _passes_nan(check, arguments, outputs):
        return None
    return Mismatch("non_finite", f"{arguments.labels[nan[0]]} holds NaN, but {name} accepts it")


def _accepted(name: str, judge: Any, answer: Any) -> bool | None:
    """Tell whether a judge's answer accepts the outputs; None if the answer is NaN. Raises `WorkloadError`."""

    def raised(error: BaseException) -> WorkloadError:
        why = f", and converting it to bool raised {name_and_message(error)}"
        if isinstance(error, NoAnswer):
            why = "; it must return True or False, or return nothing and raise an error for wrong outputs"
        return WorkloadError(f"{name} returned {type_of(answer)}{why}{defined(judge)}")

    def truth() -> bool | None:
        return answer is None or (None if bool(answer != answer) else yes_or_no(answer))

    return asked(truth, raised, passes=False)


def _refused(why: str, arguments: KernelArguments, outputs: dict[int, Any], unwritten: Unwritten) -> Mismatch:
    """Return the mismatch for outputs that a judge rejected. The message names any unwritten or non-finite output."""
    import torch

    for i, output in outputs.items():
        if i in unwritten:
            return Mismatch("unwritten", f"{why}; {_unwritten_of(arguments.labels[i], unwritten[i])}")
        if output.dtype.is_floating_point and not bool(torch.isfinite(output.to(torch.float64)).all()):
            return Mismatch("non_finite", f"{why}; {arguments.labels[i]} holds NaN or infinity")
    return Mismatch("mismatch", why)


def _passes_nan(judge: Any, arguments: KernelArguments, outputs: dict[int, Any]) -> bool:
    """Tell whether a reference that judges outputs accepts outputs full of NaN."""
    wrong = {i: v.mul(math.nan) if v.dtype.is_floating_point else v for i, v in outputs.items()}
    try:
        answer = judge(*arguments.fresh(wrong))
    except Exception:
        return False
    return answer is None or bool(answer)


def _objection(name: str, error: BaseException, outputs: dict[int, Any]) -> str:
    """Describe the error that a check raised. A device error is raised again, because it has its own failure kind."""
    on_device = any(getattr(value, "is_cuda", False) for value in outputs.values())
    if on_device and isinstance(error, RuntimeError) and kind_of(error) != "launch":
        raise error
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    message = " ".join(lines[:3])[:300]
    if isinstance(error, AssertionError):
        return f"{name} says: {message or name_of(error)}"
    return f"{name} raised {name_of(error)}: {message}"


def compare(
    work: Workload, arguments: KernelArguments, expected: Expected, unwritten: Unwritten
) -> tuple[Mismatch | None, float]:
    """Compare the kernel's outputs with the reference's tensors element by element. Unwritten elements are wrong."""
    worst = 0.0
    for i in sorted(expected):
        wrong, difference = _compared(work, arguments.labels[i], arguments.values[i], expected, i, unwritten.get(i))
        worst = max(worst, difference)
        if wrong is not None:
            return wrong, worst
    return None, worst


def _compared(
    work: Workload, label: str, out: Any, expected: Expected, i: int, unwritten: Any
) -> tuple[Mismatch | None, float]:
    import torch

    ref = expected[i]
    if out.shape != ref.shape or out.is_complex() != ref.is_complex():
        theirs = f"{'complex ' if ref.is_complex() else ''}{list(ref.shape)}"
        return Mismatch("mismatch", f"{label}: shape {list(out.shape)}, but the reference's is {theirs}"), 0.0
    written = torch.ones_like(out, dtype=torch.bool) if unwritten is None else ~unwritten
    pair = Pair(out, ref, *_wide(out, ref), written)
    tolerance = _tolerance(work, pair, expected, i)
    largest = pair.want.abs().nan_to_num(0, posinf=0).max().item() if out.numel() and not pair.exact else 0.0
    if not math.isfinite(max(atol.max().item() for atol in tolerance.atols) + tolerance.rtol * largest):
        rtol = f"rtol {tolerance.rtol:g} makes the tolerance infinite for reference values up to {largest:.3g}"
        return Mismatch("mismatch", f"{label}: {rtol}; pass a smaller rtol="), 0.0
    bad, worst = _differing(pair, tolerance)
    if int(bad.sum().item()) <= work.max_mismatched_ratio * out.numel():
        return None, worst
    return _described(label, pair, tolerance, bad, worst), worst


class Pair(NamedTuple):
    """An output and its expected tensor, in their own dtypes and in a wide dtype for subtraction. `written` is a
    mask."""

    out: Any
    ref: Any
    got: Any
    want: Any
    written: Any

    @property
    def exact(self) -> bool:
        return not (self.out.is_floating_point() or self.out.is_complex())


def _wide(out: Any, ref: Any) -> tuple[Any, Any]:
    import torch

    if out.is_complex():
        return out.to(torch.complex128), ref.to(torch.complex128)
    narrow = out.is_floating_point() and out.element_size() <= 2 and ref.element_size() <= 2
    wide = torch.float32 if narrow else torch.float64
    return out.to(wide), ref.to(wide)


class Tolerance(NamedTuple):
    """Allowed difference: `rtol` times the reference's value, plus the largest of `atols` at the value's position."""

    rtol: float
    atols: list[Any]


def _tolerance(work: Workload, pair: Pair, expected: Expected, i: int) -> Tolerance:
    """Return the workload's tolerance. The default tolerance depends on the output's dtype and the reference's usual
    sizes."""
    import torch

    name = str(pair.out.dtype).removeprefix("torch.")
    rtol = work.rtol if work.rtol is not None else (0.0 if pair.exact else RTOL.get(name, 1e-2))
    if work.atol is None and not pair.exact and pair.out.numel():
        return Tolerance(rtol, [rtol * size for size in expected.sizes[i]])
    return Tolerance(rtol, [torch.tensor(work.atol or 0.0, dtype=torch.float64, device=pair.out.device)])


def _differing(pair: Pair, tolerance: Tolerance) -> tuple[Any, float]:
    """Return a mask of the elements that differ by more than the tolerance, and the largest finite difference."""
    out, ref, got, want, written = pair
    difference = (got - want).abs()
    finite = difference < math.inf  # no tolerance covers infinity or NaN
    excess = difference - tolerance.rtol * want.abs()
    near = functools.reduce(operator.or_, [excess <= atol.to(excess) for atol in tolerance.atols])
    bad = ~((near & finite) | (got == want) | (got.isnan() & want.isnan() & written))
    if pair.exact and tolerance.rtol == tolerance.atols[0] == 0:
        bad = out != ref  # exact: the wide type rounds large integers
    return bad | ~written, difference.masked_fill(~finite, 0).max().item() if out.numel() else 0.0


def _described(label: str, pair: Pair, tolerance: Tolerance, bad: Any, worst: float) -> Mismatch:
    """Describe a wrong output: the first wrong element, the number of wrong elements, and the largest difference."""
    out, ref, got, want, written = pair
    count, place = int(bad.sum().item()), tuple(int(i) for i in bad.nonzero()[0])
    if int((~written).sum().item()) == count:
        return Mismatch("unwritten", _unwritten_of(label, ~written))
    where = f"{label}: {count} of {out.numel()} elements"
    if int((bad & ~got.isfinite() & want.isfinite()).sum().item()) == count:
        return Mismatch("non_finite", f"{where} are NaN or infinite, the first at {[*place]}")
    ours, theirs = (tensor[place].item() for tensor in ((out, ref) if pair.exact else (got, want)))
    values = f"{ours:g} instead of {theirs:g}"
    if pair.exact or f"{ours:g}" == f"{theirs:g}":
        values = f"{ours!r} instead of {theirs!r}"
    atol = max(atol.expand(out.shape)[place].item() for atol in tolerance.atols)
    limits = f"rtol {tolerance.rtol:g}, atol {atol:.3g}"
    text = f"{where} differ by more than {limits}: first at {[*place]}, {values}; largest difference {worst:.3g}"
    if never := int((~written).sum().item()):
        text += f"; the kernel never wrote {never} of them"
    if out.is_floating_point() and ref.is_floating_point() and ref.element_size() < out.element_size():
        text += f"; the reference returns {ref.dtype}, which is less precise than the output's {out.dtype}"
    return Mismatch("mismatch", text.replace("torch.", ""))


def usual_sizes(tensor: Any) -> list[Any]:
    """Return usual sizes for a whole tensor, for each row, and for each column, in shapes that broadcast to the tensor.

    An element's rounding error grows with the values of its row or column, and rows or columns may differ in scale.
    """
    rows = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    sizes = [_usual(rows.reshape(-1), DRAWN_OF_ALL)]
    if LONG <= rows.shape[1] < tensor.numel():
        sizes.append(_usual(rows.mT, DRAWN_OF_LINE).reshape(*tensor.shape[:-1], 1))
    if LONG <= rows.shape[0] < tensor.numel():
        sizes.append(_usual(rows, DRAWN_OF_LINE))
    return sizes


def _usual(values: Any, most: int) -> Any:
    """Return the usual size of the finite values along the first dimension, estimated from at most `most` values.

    The usual size is the root mean square, but has an upper limit, so that a few large values do not dominate. The
    limit is estimated from the lower quartile of nonzero absolute values, as if values were normally distributed.
    """
    import torch

    if len(values) > most:
        generator = torch.Generator("cpu").manual_seed(0)  # every process draws the same values
        drawn = torch.randint(len(values), (most,), generator=generator, dtype=torch.int64, device="cpu")
        values = values[drawn.to(values.device)]
    sizes = (values.abs() if values.is_complex() else values).double().abs().nan_to_num(math.nan, posinf=math.nan)
    top = sizes.nan_to_num(0).amax(0)  # squares of values divided by this do not overflow
    mean_square = (sizes / top).square().nanmean(0).sqrt() * top
    quarter = sizes.masked_fill(sizes == 0, math.nan).nanquantile(0.25, 0)
    return torch.minimum(mean_square, quarter / 0.31864).nan_to_num(0)
