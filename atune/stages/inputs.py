"""Inputs of a kernel on its device, and the comparison of its outputs with the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atune.artifact import FailureKind, KernelParam
from atune.errors import WorkloadError
from atune.stages.loader import output_positions, torch_dtype
from atune.workload import Workload

RTOL = {
    "float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2,
    "float8_e4m3fn": 0.125, "float8_e5m2": 0.25,
}  # fmt: skip
"""Default relative tolerance by output dtype: some units of its last place, with room for another order of summing.
The default absolute tolerance is this times the reference's root mean square, so that it follows the data's scale."""


class Arguments:
    """All arguments of one workload's kernel on one device; every candidate gets the same data."""

    def __init__(self, work: Workload, params: Sequence[KernelParam], device: str, seed: int) -> None:
        import torch

        self.params = tuple(params)
        try:
            self.out_idx = output_positions(params, work.out_idx or ())
        except IndexError as error:
            raise WorkloadError(f"Workload {work.name}: {error}") from error
        torch.manual_seed(seed)
        given = _given(work)
        n_in = len(params) - len(self.out_idx)
        if given is not None and len(given) not in (n_in, len(params)):
            raise WorkloadError(
                f"Workload {work.name}: inputs gave {len(given)} tensors; the kernel has {n_in} inputs "
                f"(and {len(self.out_idx)} outputs, by out_idx {work.out_idx})"
            )
        if given is not None and len(given) == len(params):
            given = [t for i, t in enumerate(given) if i not in self.out_idx]
        sizes = _sizes(work, params)
        queue = None if given is None else list(given)
        self.values: list[Any] = []
        for i, param in enumerate(params):
            if i in self.out_idx:
                value = torch.empty(_shape(param, sizes), dtype=torch_dtype(param.dtype), device=device)
            elif queue is not None:
                value = _placed(queue.pop(0), param, i, device, sizes, work.name)
            else:
                value = _drawn(param, _shape(param, sizes), device)
            self.values.append(value)
        self.inputs = [v for i, v in enumerate(self.values) if i not in self.out_idx]
        self.outputs = [self.values[i] for i in self.out_idx]
        self._pristine = [v.clone() if isinstance(v, torch.Tensor) else v for v in self.inputs]

    def poison(self) -> None:
        """Fill the outputs with ones bits: NaN in every float format, so that what is not written is seen."""
        import torch

        for output in self.outputs:
            output.view(torch.uint8).fill_(0xFF)

    def restore_inputs(self) -> bool:
        """Undo what a kernel wrote into its inputs. Returns whether it had."""
        import torch

        changed = False
        for value, pristine in zip(self.inputs, self._pristine, strict=True):
            if isinstance(value, torch.Tensor) and not _same_bits(value, pristine):
                value.copy_(pristine)
                changed = True
        return changed

    def copies(self) -> list[Any]:
        """Return copies of the inputs, for a reference that may write into what it gets."""
        return [v.clone() if hasattr(v, "clone") else v for v in self._pristine]


class Mismatch(msgspec.Struct, frozen=True):
    """How outputs differ from the reference."""

    kind: FailureKind
    message: str


def compare(outputs: Sequence[Any], expected: Sequence[Any], work: Workload) -> tuple[Mismatch | None, float]:
    """Return what is wrong, if anything, and the largest absolute difference."""
    import torch

    worst = 0.0
    for position, (out, ref) in enumerate(zip(outputs, expected, strict=True)):
        if out.shape != ref.shape:
            return Mismatch(
                "mismatch", f"output {position}: shape {list(out.shape)}, the reference's is {list(ref.shape)}"
            ), worst
        written = ~_poisoned(out)
        exact = not out.dtype.is_floating_point
        got, want = out.to(torch.float64), ref.to(torch.float64)
        name = str(out.dtype).removeprefix("torch.")
        rtol = work.rtol if work.rtol is not None else (0.0 if exact else RTOL.get(name, 1e-2))
        scale = want[torch.isfinite(want)].square().mean().sqrt().item() if want.numel() and not exact else 0.0
        atol = work.atol if work.atol is not None else rtol * (scale if scale == scale else 1.0)
        difference = (got - want).abs()
        bad = ~((difference <= atol + rtol * want.abs()) | (got == want) | (got.isnan() & want.isnan() & written))
        finite = difference[torch.isfinite(difference)]
        worst = max(worst, finite.max().item() if finite.numel() else 0.0)
        count = int(bad.sum().item())
        if count <= work.max_mismatched_ratio * out.numel():
            continue
        first = [int(i) for i in bad.nonzero()[0]]
        at = tuple(first)
        where = f"output {position}: {count} of {out.numel()} elements"
        unwritten = int((bad & ~written).sum().item())
        if unwritten == count:
            return Mismatch("unwritten", f"{where} were not written, the first at {first}"), worst
        lost = int((bad & ~torch.isfinite(got) & torch.isfinite(want)).sum().item())
        if lost == count:
            return Mismatch("non_finite", f"{where} are NaN or infinite, the first at {first}"), worst
        return (
            Mismatch(
                "mismatch",
                f"{where} differ by more than rtol {rtol:g}, atol {atol:.3g}: first at {first}, "
                f"{got[at].item():.6g} and not {want[at].item():.6g}; largest difference {worst:.3g}",
            ),
            worst,
        )
    return None, worst


def expected_outputs(work: Workload, arguments: Arguments) -> list[Any]:
    """Run the reference on copies of the inputs. Raises `WorkloadError` where it raises or returns no tensors."""
    import torch

    assert work.reference is not None
    try:
        answer = work.reference(*arguments.copies())
    except Exception as error:
        raise WorkloadError(f"Workload {work.name}: the reference raised {type(error).__name__}: {error}") from error
    found = list(answer) if isinstance(answer, (tuple, list)) else [answer]
    if len(found) != len(arguments.outputs) or not all(isinstance(t, torch.Tensor) for t in found):
        raise WorkloadError(
            f"Workload {work.name}: the reference returned {len(found)} value(s) of {[type(t).__name__ for t in found]}; "
            f"the kernel has {len(arguments.outputs)} output(s), by out_idx {work.out_idx}"
        )
    return [t.to(o.device) for t, o in zip(found, arguments.outputs, strict=True)]


def _given(work: Workload) -> list[Any] | None:
    if work.inputs is None:
        return None
    if not callable(work.inputs):
        return list(work.inputs)
    try:
        return list(work.inputs(**work.arguments))
    except Exception as error:
        raise WorkloadError(f"Workload {work.name}: inputs raised {type(error).__name__}: {error}") from error


def _sizes(work: Workload, params: Sequence[KernelParam]) -> dict[str, int]:
    return {n: v for n, v in work.arguments.items() if isinstance(v, int) and not isinstance(v, bool)}


def _shape(param: KernelParam, sizes: dict[str, int]) -> list[int]:
    shape = []
    for d in param.shape or ():
        if isinstance(d, str) and d not in sizes:
            raise WorkloadError(f"dimension {d!r} is symbolic: give it in the workload's arguments, or give inputs")
        shape.append(sizes[d] if isinstance(d, str) else d)
    return shape


def _placed(value: Any, param: KernelParam, position: int, device: str, sizes: dict[str, int], name: str) -> Any:
    import torch

    if param.shape is None:
        return value
    if not isinstance(value, torch.Tensor):
        raise WorkloadError(
            f"Workload {name}: input {position} is a {type(value).__name__}, and must be a torch tensor"
        )
    fits = len(value.shape) == len(param.shape)
    for want, got in zip(param.shape, value.shape, strict=False):
        if isinstance(want, str):
            fits = fits and sizes.setdefault(want, int(got)) == int(got)
        else:
            fits = fits and want == got
    if not fits or value.dtype != torch_dtype(param.dtype):
        raise WorkloadError(
            f"Workload {name}: input {position} is {value.dtype} {list(value.shape)}; the kernel takes {param.dtype} {list(param.shape)}"
        )
    return value.detach().to(device).contiguous().clone()


def _drawn(param: KernelParam, shape: list[int], device: str) -> Any:
    import torch

    if param.shape is None:
        raise WorkloadError(f"a {param.dtype} scalar parameter has no default value: give inputs")
    dtype = torch_dtype(param.dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, device=device).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, device=device).to(dtype)
    low = 0 if param.dtype.startswith("u") else -8
    return torch.randint(low, 8, shape, device=device).to(dtype)


def _poisoned(tensor: Any) -> Any:
    import torch

    size = tensor.element_size()
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return tensor.view(whole) == (0xFF if size == 1 else -1)


def _same_bits(left: Any, right: Any) -> bool:
    import torch

    return bool(torch.equal(left.view(torch.uint8), right.view(torch.uint8)))
