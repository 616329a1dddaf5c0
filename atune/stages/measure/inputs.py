"""Arguments of a kernel on its device: the inputs that every candidate gets, and the outputs that it fills."""

from __future__ import annotations

import inspect
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.errors import InputsMissing, WorkloadError, name_and_message
from atune.model.artifact import KernelParam
from atune.stages.measure.guards import Guards
from atune.stages.measure.loader import contiguous_strides, has_layout, output_positions, torch_dtype
from atune.stages.measure.sizes import size_of
from atune.system.places import located
from atune.workload.workload import Workload


class Arguments:
    """All arguments of one workload's kernel on one device; every candidate gets the same data.

    `values` are the kernel's parameters in order; every tensor lies between `guards`. Positions are those of the
    parameters.
    """

    def __init__(self, work: Workload, params: Sequence[KernelParam], device: str, input_seed: int) -> None:
        import torch

        self.params = tuple(params)
        self.out_idx = _positions(work, params, "out_idx", work.out_idx or ())
        self.zero = _positions(work, params, "zero", work.zero)
        self.named = {*_positions(work, params, "restore", work.restore), *self.zero}
        """Parameters that the workload says must be restored, or set to zero, before each call."""
        torch.manual_seed(input_seed)
        in_params = tuple(p for i, p in enumerate(params) if i not in self.out_idx)
        given = _given(work, in_params)
        n_in = len(params) - len(self.out_idx)
        if given is not None and len(given) not in (n_in, len(params)):
            raise WorkloadError(
                f"Workload {work.name}: inputs gave {len(given)} tensors; the kernel has {n_in} inputs "
                f"(and {len(self.out_idx)} outputs, by out_idx {work.out_idx})"
            )
        if given is not None and len(given) == len(params):
            outputs = [(i, t) for i, t in enumerate(given) if i in self.out_idx]
            given = [t for i, t in enumerate(given) if i not in self.out_idx]
        else:
            outputs = []
        sizes = {n: v for n, v in work.arguments.items() if isinstance(v, int) and not isinstance(v, bool)}
        queue = None if given is None else list(given)
        self.values: list[Any] = [None] * len(params)
        self.guards = Guards(device, len(params))
        self._memory: dict[int, Any] = {}
        """All that lies under a parameter, as one flat tensor: strides may leave gaps, or let elements overlap."""
        for i, param in enumerate(params):
            if i in self.out_idx:
                continue  # made last: its dimensions may be bound by an input
            if queue is not None:
                value = _placed(queue.pop(0), param, i, device, sizes, work.name)
            else:
                shape = _sized(param.shape, sizes)
                strides = None if param.strides is None else _sized(param.strides, sizes)
                value = drawn(param, shape, device, work.supply, strides)
            if isinstance(value, torch.Tensor):
                flat = memory_of(value)
                self._allocate(i, flat.dtype, value.shape, value.stride())
                self._memory[i].copy_(flat)
            else:
                self.values[i] = value  # a scalar
        _bind_outputs(outputs, params, sizes)
        for i in self.out_idx:
            shape = _sized(params[i].shape, sizes)
            strides = contiguous_strides(shape) if params[i].strides is None else _sized(params[i].strides, sizes)
            self._allocate(i, torch_dtype(params[i].dtype), shape, strides)
        self.in_idx = tuple(i for i in range(len(params)) if i not in self.out_idx)
        self.inputs = [self.values[i] for i in self.in_idx]
        self.outputs = [self.values[i] for i in self.out_idx]
        for i in self.zero:
            if i in self.in_idx:
                self._memory[i].zero_()
        if work.setup is not None:
            try:
                work.setup(*self.inputs)
            except BaseException as error:
                said = f"Workload {work.name}: setup raised {name_and_message(error)}"
                raise WorkloadError(located(said, error)) from error
        self._pristine = {i: self._memory[i].clone() for i in self.in_idx if i in self._memory}

    def _allocate(self, i: int, dtype: Any, shape: Sequence[int], strides: Sequence[int]) -> None:
        self._memory[i] = self.guards.allocate(i, extent(shape, strides), dtype)
        self.values[i] = self._memory[i].as_strided(shape, strides)

    def poison(self) -> None:
        """Fill the outputs with ones bits: NaN in every float format, so that what is not written is seen.

        An output that is named to be zeroed is set to zero.
        """
        self.fill_outputs(0xFF)

    def fill_outputs(self, byte: int) -> None:
        """Set every byte of the outputs to `byte`; an output that is named to be zeroed is set to zero."""
        import torch

        for i in self.out_idx:
            memory = self._memory[i]
            memory.zero_() if i in self.zero else memory.view(torch.uint8).fill_(byte)

    def changed(self) -> set[int]:
        """Return the input parameters that a kernel has written into."""
        return {i for i, pristine in self._pristine.items() if not same_bits(self._memory[i], pristine)}

    def restore_inputs(self) -> set[int]:
        """Undo what a kernel wrote into its inputs. Returns which these were."""
        changed = self.changed()
        for i in changed:
            self._memory[i].copy_(self._pristine[i])
        return changed

    def restorer(self, changed: Collection[int]) -> Callable[[], None] | None:
        """Return a function that restores what the kernel changed, and what is named; None where that is nothing."""
        wanted = sorted({*changed, *self.named})
        if not wanted:
            return None
        pairs = [(self._memory[i], self._pristine[i]) for i in wanted if i in self._pristine and i not in self.zero]
        zeroed = [self._memory[i] for i in wanted if i in self.zero]

        def restore() -> None:
            for value, pristine in pairs:
                value.copy_(pristine)
            for value in zeroed:
                value.zero_()

        return restore

    def copies(self) -> list[Any]:
        """Return copies of the inputs, for a reference that may write into what it gets."""
        return [self._copy(i) for i in self.in_idx]

    def _copy(self, i: int) -> Any:
        value = self.values[i]
        if i not in self._pristine:
            return value  # a scalar
        return self._pristine[i].clone().as_strided(value.shape, value.stride())


def drawn(
    param: KernelParam,
    shape: Sequence[int],
    device: str,
    supply: str | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Return a tensor of random data, contiguous or with `strides`.

    `supply` is the name of one of tilelang's `TensorSupplyType`s, in lower case. None draws floats from the standard
    normal distribution, and small whole numbers for integers. Integers are from -2 (0 if unsigned) to 2 for every
    distribution.
    """
    import torch

    if param.shape is None:
        raise InputsMissing(f"a {param.dtype} scalar parameter has no default value: give inputs")
    if strides is not None:
        return drawn(param, [extent(shape, strides)], device, supply).as_strided(shape, strides)
    dtype = torch_dtype(param.dtype)
    unsigned, float8 = param.dtype.startswith("u"), "float8" in param.dtype
    is_float = dtype.is_floating_point or dtype.is_complex
    if supply in ("zero", "one"):
        return torch.full(shape, supply == "one", device=device).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, device=device).to(dtype)
    if not is_float and supply is not None:
        supply = "integer"  # rounded to whole numbers, little would be left of the others
    if supply == "uniform" or (supply == "auto" and is_float and not float8):
        return torch.empty(shape, device=device).uniform_(-1, 1).to(dtype)
    if supply == "normal":
        return torch.empty(shape, device=device).normal_(-1, 1).to(dtype)  # tilelang's has the mean -1, too
    if supply == "randn" or (supply is None and is_float):
        return torch.randn(shape, device=device).to(dtype)
    if float8:
        return torch.randint(-128, 128, shape, device=device).to(torch.int8).to(dtype)
    if supply is None:
        return torch.randint(0 if unsigned else -8, 8, shape, device=device).to(dtype)
    return torch.randint(0 if unsigned else -2, 3, shape, device=device).to(dtype)


class DrawnInputs:
    """Inputs that are drawn in the device's process, with `symbols` as the sizes of symbolic dimensions.

    `scalars` are the values of scalar parameters, in order.
    """

    cache_identity = "inputs as described by the problem"

    def __init__(self, symbols: Mapping[str, int], supply: str | None, scalars: Sequence[Any] = ()) -> None:
        self.symbols, self.supply, self.scalars = dict(symbols), supply, tuple(scalars)

    def __call__(self, parameters: Sequence[KernelParam]) -> list[Any]:
        import torch

        device = "cuda" if torch.cuda.is_initialized() else "cpu"
        scalars = iter(self.scalars)
        found = []
        for param in parameters:
            if param.shape is None:
                found.append(next(scalars))
                continue
            strides = None if param.strides is None else _sized(param.strides, self.symbols)
            found.append(drawn(param, _sized(param.shape, self.symbols), device, self.supply, strides))
        return found


class GivenTensors:
    """An `inputs` function that gives these tensors; they travel in a file, and not to every worker.

    The file lives until `discard`, or as long as this object, in the process that made it. `metadata` identifies it:
    dtypes, shapes and strides of tensors, and scalars by value.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        import torch

        values = [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in tensors]
        with tempfile.NamedTemporaryFile(prefix="atune-inputs-", suffix=".pt", delete=False) as file:
            torch.save(values, file)
        self._remove = weakref.finalize(self, Path(file.name).unlink, missing_ok=True)
        self._path = file.name
        self.metadata = [
            (str(v.dtype), tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else ("value", repr(v))
            for v in tensors
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "metadata": self.metadata}

    def discard(self) -> None:
        """Remove the file, when nobody is going to read it any more."""
        self._remove()

    def __call__(self) -> list[Any]:
        import torch

        found: list[Any] = torch.load(self._path, weights_only=True)
        return found


class CallInputs(GivenTensors):
    """The tensors that the kernel was called with, for tuning on the same data."""

    cache_identity = "inputs of the call"


def _positions(work: Workload, params: Sequence[KernelParam], name: str, positions: Sequence[int]) -> tuple[int, ...]:
    try:
        return output_positions(params, positions)
    except IndexError as error:
        message = str(error).replace("out_idx", name)
        raise WorkloadError(f"Workload {work.name}: {message}") from error


def _given(work: Workload, in_params: tuple[KernelParam, ...]) -> list[Any] | None:
    if work.inputs is None:
        return None
    if not callable(work.inputs):
        return list(work.inputs)
    try:
        parameters = inspect.signature(work.inputs).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        wanted = {p.name for p in parameters}
        named = {"parameters": in_params} if "parameters" in wanted else {}
        named |= {k: v for k, v in work.arguments.items() if takes_all or k in wanted}
        return list(work.inputs(**named))
    except BaseException as error:
        said = f"Workload {work.name}: inputs raised {name_and_message(error)}"
        raise WorkloadError(located(said, error)) from error


def _bind_outputs(outputs: Sequence[tuple[int, Any]], params: Sequence[KernelParam], sizes: dict[str, int]) -> None:
    """Take the sizes of symbolic dimensions that outputs alone have from the tensors given for them, by position."""
    for i, tensor in outputs:
        for want, got in zip(params[i].shape or (), getattr(tensor, "shape", ()), strict=False):
            if isinstance(want, str):
                sizes.setdefault(want, int(got))


def _sized(dimensions: Sequence[int | str] | None, sizes: Mapping[str, int]) -> list[int]:
    return [_size(d, sizes) if isinstance(d, str) else d for d in dimensions or ()]


def _size(text: str, sizes: Mapping[str, int]) -> int:
    if (found := size_of(text, sizes)) is None:
        raise WorkloadError(
            f"dimension {text!r} is symbolic, and nothing says its size: give tensors of the size to tune for, such as "
            "Workload(…, inputs=[torch.randn(4096, 64)]). Where outputs alone have it, give all parameters' tensors"
        )
    return found


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
        size = sizes.setdefault(want, int(got)) if isinstance(want, str) else want
        fits = fits and size == int(got)
    if not fits or value.dtype != torch_dtype(param.dtype):
        raise WorkloadError(
            f"Workload {name}: input {position} is {value.dtype} {list(value.shape)}; "
            f"the kernel takes {param.dtype} {list(param.shape)}"
        )
    if param.strides is None:
        return value.detach().to(device).contiguous()
    if not has_layout(param, value):
        raise WorkloadError(
            f"Workload {name}: input {position} has the strides {list(value.stride())}; "
            f"the kernel takes {list(param.strides)}"
        )
    for want, got in zip(param.strides, value.stride(), strict=True):
        if isinstance(want, str) and sizes.setdefault(want, int(got)) != int(got):
            raise WorkloadError(
                f"Workload {name}: input {position} has the strides {list(value.stride())}; "
                f"{want} is {sizes[want]} elsewhere"
            )
    return memory_of(value.detach()).to(device).as_strided(value.shape, value.stride())


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie between a tensor's first and last one, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def memory_of(tensor: Any) -> Any:
    """Return the memory from a tensor's first to its last element as a flat tensor, gaps included."""
    return tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,))


def same_bits(left: Any, right: Any) -> bool:
    """Tell whether two tensors of one shape and dtype hold the same bits, NaN or not."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(left.element_size())
    if whole is None:
        left, right, whole = left.contiguous(), right.contiguous(), torch.uint8
    return bool(torch.equal(left.view(whole), right.view(whole)))
