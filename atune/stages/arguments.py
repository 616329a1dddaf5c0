"""A kernel's arguments on its device: inputs that all candidates share, and outputs. Guards surround each tensor."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from atune.bundle.launch import contiguous, extent, gate, size_of
from atune.errors import InputsMisfit, InputsMissing, WorkloadError
from atune.model.artifact import KernelParam, Roles
from atune.model.candidate import describe_config
from atune.stages.tensors import (
    bind_dimensions,
    bits_of,
    check_arguments,
    digest_of_bits,
    memory_of,
    same_bits,
    torch_dtype,
)
from atune.workload.source_locations import ask
from atune.workload.workload import Workload

GUARD_BYTES = 64 << 10
"""Bytes of the guard on each side of a tensor. A block without bounds checks writes at most one tile past a tensor."""
ALIGN_BYTES = 512
"""Alignment of tensors in bytes, the same as torch's alignment on a GPU. TMA needs no larger alignment than 128 bytes
(CUDA C++ Programming Guide, «Asynchronous Data Copies», table of alignments)."""
POISONS = (0xFF, 0x7F)
"""The bytes that fill the outputs: the first byte before the first call, the second byte before a second call. An
element that neither call changes is unwritten. A number made of the first byte is NaN in every float format, and -1 as
an integer. A number made of the second byte is large or NaN, so the second call also reveals a kernel that adds to its
output."""
_LOWEST, _HIGHEST = 0x11, 0x37
"""Smallest and largest byte in a guard. The bytes form finite floats, but neither small integers nor common floats."""


class KernelArguments:
    """All arguments of one workload's kernel on one device. Every candidate gets the same data.

    `copies_on_host`: whether the host's memory holds the copies from which inputs are restored. The attribute `values`
    holds the kernel's arguments in order. A position is an index into the kernel's parameters.
    """

    def __init__(
        self,
        work: Workload,
        params: Sequence[KernelParam],
        roles: Roles,
        device: str,
        seed: int = 0,
        copies_on_host: bool = False,
    ) -> None:
        import torch

        self.params, self.roles, self._work, n = tuple(params), roles, work, len(params)
        for i, shape in enumerate([list(param.shape or ()) for param in params]):
            if any(isinstance(size, int) and size < 0 for size in shape):
                problem = f"Workload {work.name}: for {describe_config(work.arguments)}"
                raise WorkloadError(f"{problem}, parameter {i} has the shape {shape}: no size may be negative")
        self.out_idx = tuple(sorted(i % n for i in roles.outputs))
        self.in_idx = tuple(i for i in range(n) if i not in self.out_idx)
        self.labels = [f"output {self.out_idx.index(i)}" if i in self.out_idx else f"parameter {i}" for i in range(n)]
        """Name of each parameter in messages: its number among the outputs, or its position if it is an input."""
        self.writes = roles.writes
        """Positions of the inputs that the kernel may write into."""
        self.supplied: dict[int, Any] = {}
        self.zero = tuple(sorted(i % n for i in roles.zero))
        self.named = {*(i % n for i in work.restore), *self.zero}
        """Positions of the parameters that the workload asks to restore, or to set to zero, before each call."""
        self.values: list[Any] = [None] * n
        self.guards = Guards(device, n)
        self._memory: dict[int, Any] = {}
        """Each parameter's memory as a flat tensor. The parameter's strides may leave gaps or let elements overlap."""
        self._sizes = {n: v for n, v in work.arguments.items() if isinstance(v, int) and not isinstance(v, bool)}
        """Known values of symbolic dimensions."""
        if isinstance(work.inputs, DrawnInputs):
            self._sizes |= work.inputs.symbols
        torch.manual_seed(seed)
        inputs, outputs = self._given()
        self._fill_inputs(inputs)
        self._make_outputs(outputs)
        gate(self.params, lambda why: InputsMisfit(f"Workload {work.name}: inputs do not fit: {why}"))(self.values)
        self.inputs = [self.values[i] for i in self.in_idx]
        self.outputs = [self.values[i] for i in self.out_idx]
        self.set_up = self._set_up()
        """Positions of the inputs that the workload's `setup` changed."""
        copy = _copy_to_host if copies_on_host else torch.clone
        self._pristine = {i: copy(self._memory[i]) for i in self.in_idx if i in self._memory}
        self.expected: Any = None
        """Outputs of the reference by position; None if there is no reference."""
        self.evidence_before = ""
        """Result of `evidence()` right after the reference ran; empty before the reference runs."""

    def _given(self) -> tuple[list[Any] | None, list[tuple[int, Any]]]:
        """Return the workload's inputs in order (None to draw all inputs), and given outputs with their positions."""
        wanted = range(len(self.params)) if self.roles.unnamed else self.in_idx
        given = _given_inputs(self._work, tuple(self.params[i] for i in wanted))
        if given is None or len(given) == len(self.in_idx):
            return given, []
        if len(given) != len(self.params):
            name = f"Workload {self._work.name}: {user_name(self._work, 'inputs')}"
            raise WorkloadError(
                f"{name} gave {len(given)} tensor{'s' * (len(given) != 1)}, but the kernel has {self.described}"
            )
        self.supplied = {i: given[i] for i in self.out_idx if self.roles.unnamed}
        return [given[i] for i in self.in_idx], [(i, given[i]) for i in self.out_idx]

    def _fill_inputs(self, given: list[Any] | None) -> None:
        """Copy given inputs into guarded memory, and draw the other inputs at random. Given shapes determine symbolic
        dimensions."""
        import torch

        device = self.guards.device
        for place, i in enumerate(self.in_idx):
            param = self.params[i]
            if given is not None and given[place] is not TO_DRAW:
                value = self._placed(i, given[place])
            else:
                strides = None if param.strides is None else sized(param.strides, self._sizes)
                value = drawn(param, sized(param.shape, self._sizes), device, self._work.supply, strides)
            if isinstance(value, torch.Tensor):
                flat = memory_of(value)
                self._allocate(i, flat.dtype, value.shape, value.stride())
                self._memory[i].copy_(flat)
            else:
                self.values[i] = value  # a scalar

    def _placed(self, i: int, value: Any) -> Any:
        """Return a given input on the device, with strides that fit the parameter. Raises `InputsMisfit`."""
        import torch

        param, device = self.params[i], self.guards.device
        if isinstance(value, torch.Tensor) and param.strides is None:
            value = value.detach().to(device).contiguous()
        elif isinstance(value, torch.Tensor):
            value = memory_of(value.detach()).to(device).as_strided(value.shape, value.stride())
        try:
            check_arguments([param], [value], device, i)
            bind_dimensions([param], [value], self._sizes)
        except (TypeError, ValueError) as error:
            own = "supply_prog" if self._work.like_tilelang else "inputs=lambda parameters: …"
            hint = f". If the inputs depend on the configuration, use {own}"
            raise InputsMisfit(f"Workload {self._work.name}: inputs do not fit: {error}{hint}") from None
        return value

    def _make_outputs(self, given: Sequence[tuple[int, Any]]) -> None:
        """Allocate the outputs. If only outputs have a symbolic dimension, `given` determines the dimension's size."""
        for i, tensor in given:
            for want, got in zip(self.params[i].shape or (), getattr(tensor, "shape", ()), strict=False):
                if isinstance(want, str):
                    self._sizes.setdefault(want, int(got))
        for i in self.out_idx:
            param = self.params[i]
            shape = sized(param.shape, self._sizes)
            strides = contiguous(shape) if param.strides is None else sized(param.strides, self._sizes)
            self._allocate(i, torch_dtype(param.dtype), shape, strides)

    def _set_up(self) -> tuple[int, ...]:
        """Zero the inputs that `zero` names. Call the workload's `setup`, and return the positions of the inputs that
        it changed."""
        for i in self.zero:
            if i in self.in_idx:
                self._memory[i].zero_()
        if self._work.setup is None:
            return ()
        before = {i: self._memory[i].clone() for i in self.in_idx if i in self._memory}
        setup = self._work.setup
        ask(f"Workload {self._work.name}: setup", lambda: setup(*self.inputs))
        return tuple(i for i, value in before.items() if not same_bits(self._memory[i], value))

    def _allocate(self, i: int, dtype: Any, shape: Sequence[int], strides: Sequence[int]) -> None:
        self._memory[i] = self.guards.allocate(i, extent(shape, strides), dtype)
        self.values[i] = self._memory[i].as_strided(shape, strides)

    @property
    def described(self) -> str:
        """Describe, for messages, how many outputs and inputs the kernel has, and why some parameters are outputs."""
        named, outs, ins = self._work.out_idx, len(self.out_idx), len(self.in_idx)
        places = f" (parameter{'s' * (outs > 1)} {', '.join(map(str, self.out_idx))})" if outs else ""
        why = "" if named is None else f", by out_idx {list(named)}"
        if named is None and self.writes and not self.out_idx:
            why = f": the kernel may also read parameters {list(self.writes)}; name outputs with out_idx= or zero="
        return f"{outs} output{'s' * (outs != 1)}{places} and {ins} input{'s' * (ins != 1)}{why}"

    def still_holding(self, byte: int, among: Mapping[int, Any] | None = None) -> dict[int, Any]:
        """Return masks of output elements that still hold `byte`, by the output's position. `among`: masks of the
        elements to examine; None for all elements. Outputs that are set to zero are not examined."""
        masks = {}
        for i in [i for i in (self.out_idx if among is None else among) if i not in self.zero]:
            size = self.values[i].element_size()
            pattern = int.from_bytes(bytes([byte]) * size, "little", signed=size > 1)  # of a whole element
            mask = bits_of(self.values[i]) == pattern
            mask = mask if among is None else mask & among[i]
            if mask.any():
                masks[i] = mask
        return masks

    def take(self, other: KernelArguments) -> bool:
        """Copy the inputs of `other`, and return whether any input changed. Raises `WorkloadError` if shapes differ."""
        differ, self._pristine = False, other._pristine
        for i in self._pristine:
            if self._memory[i].shape != other._memory[i].shape:
                raise WorkloadError(f"Workload {self._work.name}: inputs must have the same shapes in each call")
            differ |= not same_bits(self._memory[i], other._memory[i])
            self._memory[i].copy_(other._memory[i])
        return differ

    def fill_outputs(self, byte: int) -> None:
        """Set every byte of the outputs to `byte`, except that outputs named by `zero` are set to zero."""
        import torch

        for i in self.out_idx:
            memory = self._memory[i]
            memory.zero_() if i in self.zero else memory.view(torch.uint8).fill_(byte)

    def changed(self) -> set[int]:
        """Return the positions of the inputs that a kernel has written into."""
        return {
            i for i, pristine in self._pristine.items() if not same_bits(self._memory[i].to(pristine.device), pristine)
        }

    def restore_inputs(self) -> set[int]:
        """Undo a kernel's writes into its inputs. Return the positions of the inputs that the kernel wrote into."""
        changed = self.changed()
        for i in changed:
            self._memory[i].copy_(self._pristine[i])
        return changed

    def digest(self) -> str:
        """Return a digest of a kernel's outputs and of the inputs that the kernel may write into."""
        return digest_of_bits([self.values[i] for i in sorted({*self.out_idx, *self.writes})])

    def evidence(self) -> str:
        """Return a digest of the data that candidates are judged by: the reference's tensors and copies of inputs."""
        pristine = [value for value in self._pristine.values() if value.device.type == self.guards.device]
        return digest_of_bits([*(self.expected or {}).values(), *pristine])

    def restorer(self, changed: Collection[int]) -> Callable[[], None] | None:
        """Return a function that restores the parameters in `changed` and `named`; None if both are empty."""
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
        """Return copies of the inputs, for a reference that may write into its arguments."""
        return [self._copy(i) for i in self.in_idx]

    def fresh(self, others: Mapping[int, Any] | None = None) -> list[Any]:
        """Return a reference's arguments in order: tensors of `others`, which has them by position, and otherwise new
        outputs and copies of the inputs."""
        known = {**dict(zip(self.in_idx, self.copies(), strict=True)), **(others or {})}
        return [known[i] if i in known else self._fresh_output(i) for i in range(len(self.params))]

    def _fresh_output(self, i: int) -> Any:
        """Return a new output: a copy of the tensor that the user supplied for the output, or else zeros."""
        import torch

        fresh, given = torch.zeros_like(self.values[i]), self.supplied.get(i)
        return fresh if getattr(given, "shape", None) != fresh.shape else fresh.copy_(given)

    def _copy(self, i: int) -> Any:
        value = self.values[i]
        if i not in self._pristine:
            return value  # a scalar
        return self._pristine[i].to(value.device, copy=True).as_strided(value.shape, value.stride())


def _copy_to_host(value: Any) -> Any:
    """Return a copy of a tensor in the host's memory. The memory is pinned, so copying the tensor back is fast."""
    import torch

    return torch.empty_like(value, device="cpu", pin_memory=torch.cuda.is_available()).copy_(value)


def user_name(work: Workload, what: str) -> str:
    """Return the name of `what` for messages. If the workload comes from tilelang's tuner, use tilelang's own name."""
    inputs = "set_autotune_inputs" if isinstance(work.inputs, GivenTensors) else "supply_prog"
    names = {"the reference": "ref_prog", "the check": "manual_check_prog"}
    return names.get(what, inputs) if work.like_tilelang else what


def _given_inputs(work: Workload, in_params: tuple[KernelParam, ...]) -> list[Any] | None:
    inputs = work.inputs
    if inputs is None:
        return None
    if not callable(inputs):
        return list(inputs)

    def given() -> list[Any]:
        parameters = inspect.signature(inputs).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        wanted = {p.name for p in parameters}
        named = {"parameters": in_params} if "parameters" in wanted else {}
        named |= {k: v for k, v in work.kernel_arguments.items() if takes_all or k in wanted}
        answer = inputs(**named)
        return [answer] if answer is None or getattr(answer, "shape", None) is not None else list(answer)

    hint = "" if work.like_tilelang else f"available arguments: {', '.join([*work.arguments, 'parameters'])}"
    return ask(f"Workload {work.name}: {user_name(work, 'inputs')}", given, hint)


def drawn(
    param: KernelParam,
    shape: Sequence[int],
    device: str,
    supply: str | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Return a tensor of random data, which is contiguous unless `strides` are given.

    `supply`: the name of a member of tilelang's `TensorSupplyType`, in lower case, or None. If `supply` is None, floats
    have the standard normal distribution, and integers are from -8 to 7. If `supply` is a name, integers are from -2
    to 2. Unsigned integers start at 0 in both cases.
    """
    import torch

    if param.shape is None:
        raise InputsMissing(f"a {param.dtype} scalar parameter has no default value: give inputs=")
    if strides is not None:
        return drawn(param, [extent(shape, strides)], device, supply).as_strided(shape, strides)
    dtype = torch_dtype(param.dtype)
    float8, is_float = "float8" in param.dtype, dtype.is_floating_point or dtype.is_complex
    if supply in ("zero", "one"):
        return torch.full(shape, supply == "one", dtype=torch.bool, device=device).to(dtype)
    here: dict[str, Any] = {"dtype": torch.float32, "device": device}  # not the program's defaults
    if is_float and supply in (None, "randn"):
        return torch.randn(shape, **here).to(dtype)
    if is_float and (supply == "uniform" or (supply == "auto" and not float8)):
        return torch.empty(shape, **here).uniform_(-1, 1).to(dtype)
    if is_float and supply == "normal":
        return torch.empty(shape, **here).normal_(-1, 1).to(dtype)  # tilelang's own distribution has the mean -1, too
    low, high = (-2, 3) if supply else (-8, 8)  # a narrower distribution, rounded to integers, is nearly constant
    if dtype is torch.bool:
        low, high = 0, 2
    elif float8:
        low, high = -128, 128
    elif param.dtype.startswith("u"):
        low = 0
    return torch.randint(low, high, shape, dtype=torch.int64, device=device).to(torch.int8).to(dtype)


TO_DRAW = object()
"""Placeholder for an input that atune draws at random."""


class DrawnInputs:
    """Inputs that atune draws at random. `symbols`: sizes of symbolic dimensions. `scalars`: scalar inputs in order."""

    cache_identity = "inputs as described by the problem"

    def __init__(self, symbols: Mapping[str, int], scalars: Sequence[Any] = ()) -> None:
        self.symbols, self.scalars = dict(symbols), tuple(scalars)

    def __call__(self, parameters: Sequence[KernelParam]) -> list[Any]:
        scalars = iter(self.scalars)
        return [next(scalars) if param.shape is None else TO_DRAW for param in parameters]


class GivenTensors:
    """An `inputs` function that returns `tensors` with the values that the tensors have when the workload is sent to
    workers.

    `metadata` identifies the inputs by dtypes, shapes, strides and the values of scalars. Tensors of integers or
    booleans are also identified by their values, because lengths, indices and masks decide what a kernel does.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        import torch

        self._values = [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in tensors]
        self.metadata = [
            (str(v.dtype), tuple(v.shape), v.stride(), _content(value))
            if isinstance(v, torch.Tensor)
            else ("value", repr(v))
            for v, value in zip(tensors, self._values, strict=True)
        ]

    def discard(self) -> None:
        """Forget the tensors when they are no longer needed."""
        self._values = []

    def __call__(self) -> list[Any]:
        return list(self._values)


def _content(tensor: Any) -> str:
    """Return a hash of the values of a CPU tensor of integers or booleans; empty for a tensor of another dtype."""
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return hashlib.sha256(tensor.resolve_neg().contiguous().numpy()).hexdigest() if whole else ""


class CallInputs(GivenTensors):
    """The tensors of the user's call, so that tuning uses the same data as the call."""

    cache_identity = "inputs of the call"


def sized(dimensions: Sequence[int | str] | None, sizes: Mapping[str, int]) -> list[int]:
    """Return dimensions as numbers. Raises `InputsMissing` if the size of a symbolic dimension is not known."""
    return [_size(d, sizes) if isinstance(d, str) else d for d in dimensions or ()]


def _size(text: str, sizes: Mapping[str, int]) -> int:
    if (size := size_of(text, sizes)) is None:
        raise InputsMissing(
            f"dimension {text!r} is symbolic, and its size is unknown: give tensors with the size to tune for, such as "
            "Workload(…, inputs=[torch.randn(4096, 64)]). "
            "If only outputs have the dimension, give tensors for all parameters"
        )
    return size


class _Guard(NamedTuple):
    position: int
    after: bool
    zone: Any
    pattern: Any


class Guards:
    """Allocates tensors with a guard on each side, and describes writes into the guards.

    Each parameter's guards have their own pattern, which also reveals a kernel that copies one guard into another. Each
    tensor takes `ALIGN_BYTES` and twice `GUARD_BYTES` of extra memory. All patterns together take `GUARD_BYTES`.
    """

    def __init__(self, device: str, n_params: int) -> None:
        import torch

        self.device = device
        self._guards: list[_Guard] = []
        generator = torch.Generator("cpu").manual_seed(0)  # torch's own generator draws the inputs
        size = GUARD_BYTES + n_params
        pattern = torch.randint(_LOWEST, _HIGHEST + 1, (size,), dtype=torch.uint8, device="cpu", generator=generator)
        self._pattern = pattern.to(device)

    def allocate(self, position: int, count: int, dtype: Any) -> Any:
        """Return a flat, uninitialised tensor of `count` elements, with guards, for the parameter at `position`."""
        import torch

        n = count * dtype.itemsize
        whole = torch.empty(2 * GUARD_BYTES + ALIGN_BYTES + n, dtype=torch.uint8, device=self.device)
        start = GUARD_BYTES + -whole.data_ptr() % ALIGN_BYTES
        end = start + n
        pattern = self._pattern[position : position + GUARD_BYTES]
        for after, at in ((False, start - GUARD_BYTES), (True, end)):
            zone = whole[at : at + GUARD_BYTES]
            zone.copy_(pattern)
            self._guards.append(_Guard(position, after, zone, pattern))
        # from_dlpack takes the bare address, so the tensor begins at 0 of its own storage, like any other tensor.
        return torch.from_dlpack(whole[start:end]).view(dtype)

    def renew(self) -> None:
        for guard in self._guards:
            guard.zone.copy_(guard.pattern)

    def damage(self) -> str:
        """Wait for the device, and describe writes into guards: on which side, and how far. Empty if there are none."""
        import torch

        if not self._guards:  # no parameter is a tensor
            return ""
        hit = torch.stack([(guard.zone != guard.pattern).any() for guard in self._guards]).tolist()
        return "; ".join(_described_damage(guard) for guard, was_hit in zip(self._guards, hit, strict=True) if was_hit)


def _described_damage(guard: _Guard) -> str:
    places = (guard.zone != guard.pattern).nonzero()
    far = int(places.max()) + 1 if guard.after else GUARD_BYTES - int(places.min())
    side = "after its end" if guard.after else "before its start"
    return f"parameter {guard.position}: written up to {far} bytes {side}"
