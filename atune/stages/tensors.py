"""A kernel's parameters as tensors: dtypes, sizes, strides, checks of arguments, and new output tensors."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from atune.bundle import launch
from atune.model.artifact import KernelParam


def device_type(target: str) -> str:
    """Return torch's device type for kernels of `target`: ``cpu`` or ``cuda``."""
    return "cpu" if target == "c" else "cuda"


def torch_dtype(name: str) -> Any:
    """Return torch's dtype for a TileLang dtype name, such as ``bfloat16`` or ``float8_e4m3fn``."""
    dtype = launch.torch_dtype(name)
    if dtype is None:
        raise ValueError(f"torch has no dtype for TileLang's {name}")
    return dtype


def memory_of(tensor: Any) -> Any:
    """Return the memory from a tensor's first element to its last element as a flat tensor, including any gaps."""
    return tensor.as_strided((launch.extent(tensor.shape, tensor.stride()),), (1,))


_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def bits_of(tensor: Any) -> Any:
    """Return a view of a tensor in which each element is an integer of the same size."""
    import torch

    return tensor.view(getattr(torch, _INTEGERS[tensor.element_size()]))


def same_bits(left: Any, right: Any) -> bool:
    """Tell whether two tensors of the same shape and dtype hold the same bits. Two NaN with the same bits are equal."""
    import torch

    if left.element_size() not in _INTEGERS:
        return bool(torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)))
    return bool(torch.equal(bits_of(left), bits_of(right)))


_DIGEST_WORDS = 1 << 22
"""Number of eight-byte words to digest at a time. The words take 32 MiB, and their products take another 32 MiB."""
_DIGEST_FACTOR = -0x61C8864680B583EB


def digest_of_bits(tensors: Sequence[Any]) -> str:
    """Return a digest of 16 hex digits. Each word is multiplied by its own odd number, and summed up modulo 2**64.

    Equal bits have equal digests. If only one word differs, the digests differ. Other differences go unnoticed with a
    probability of about 1 in 2**63 (multiply-shift hashing; Dietzfelbinger and others, J. Algorithms 25, 1997).
    """
    import torch

    total, sizes = None, 0
    for tensor in tensors:
        data = memory_of(tensor.contiguous()).view(torch.uint8)
        whole = data.numel() // 8 * 8
        words = list(data[:whole].view(torch.int64).split(_DIGEST_WORDS))
        if whole < data.numel():
            words.append(torch.nn.functional.pad(data[whole:].clone(), (0, 8 - data.numel() + whole)).view(torch.int64))
        for part in words:
            weights = _weights(part.device)[: part.numel()]
            products = torch.dot(part, weights) if part.device.type == "cpu" else (part * weights).sum()
            total = products if total is None else total * _DIGEST_FACTOR + products  # on the device, without waiting
        sizes = sizes * _DIGEST_FACTOR + data.numel()
    return f"{(sizes + (0 if total is None else int(total.item()))) % 2**64:016x}"


@functools.cache
def _weights(device: Any) -> Any:
    """Return an odd number for each word. The number is the splitmix64 hash of the word's position."""
    import torch

    numbers = torch.arange(1, _DIGEST_WORDS + 1, dtype=torch.int64, device=device) * _DIGEST_FACTOR
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers | 1


def has_layout(param: KernelParam, tensor: Any) -> bool:
    """Tell whether a tensor has the layout that `param` declares: contiguous, or with the declared strides.

    The stride of a dimension of size one or less does not matter, and a symbolic stride can have any value.
    """
    if param.strides is None:
        return bool(tensor.is_contiguous())
    layout = zip(param.strides, tensor.stride(), tensor.shape, strict=True)
    return all(isinstance(want, str) or want == got or size <= 1 for want, got, size in layout)


def bind_dimensions(
    params: Sequence[KernelParam], arguments: Sequence[Any], known: dict[str, int] | None = None
) -> dict[str, int]:
    """Read the values of symbolic dimensions and strides from the given tensors, and add the values to `known`. Raises
    `ValueError` if a dimension or stride has two different values."""
    known = {} if known is None else known
    for param, argument in zip(params, arguments, strict=True):
        if not hasattr(argument, "stride"):
            continue
        names = _declared(param)
        sizes = (*argument.shape, *(argument.stride() if param.strides else ()))
        for name, size in zip(names, sizes, strict=False):
            if isinstance(name, str) and known.setdefault(name, size) != size:
                raise ValueError(f"dimension {name} is {known[name]} elsewhere and {size} here")
    return known


def check_arguments(
    params: Sequence[KernelParam], arguments: Sequence[Any], device: str | None = None, first: int = 0
) -> None:
    """Raise `ValueError` or `TypeError` for an argument that the kernel cannot take.

    `device`: torch's type of the device on which tensors must be. If `device` is None, strides are ignored, and tensors
    without memory, such as fake tensors, are accepted. `first`: the position of the first argument.
    """
    for position, (param, tensor) in enumerate(zip(params, arguments, strict=True), first):
        if param.shape is None:
            continue
        if not hasattr(tensor, "stride"):
            wanted = f"{param.dtype} {list(param.shape)}"
            got = reprlib.repr(tensor)
            raise TypeError(f"parameter {position}: the kernel takes a tensor of {wanted}; got {got}")
        shape = tuple(tensor.shape)
        fits = len(shape) == len(param.shape) and all(
            isinstance(want, str) or want == got for want, got in zip(param.shape, shape, strict=True)
        )
        right = fits and (device is None or has_layout(param, tensor))
        elsewhere = device is not None and tensor.device.type != device
        if not right or elsewhere or tensor.dtype != torch_dtype(param.dtype):
            wanted = "contiguous" if param.strides is None else f"with strides {list(param.strides)}"
            layout = "" if right or not fits else f", with strides {list(tensor.stride())}"
            layout += f", on {tensor.device} instead of {device}" if elsewhere else ""
            raise ValueError(
                f"parameter {position}: the kernel takes {param.dtype} {list(param.shape)}, {wanted}; "
                f"got {str(tensor.dtype).removeprefix('torch.')} {list(shape)}{layout}"
            )


class Outputs:
    """Makes a kernel's outputs, uninitialised or zero, on the device of the first tensor among the arguments.

    If no argument is a tensor, outputs are on the target's current device. A dimension may be a number, a name whose
    value follows from a given tensor or scalar, or a sum or product of names and numbers. `scalars`: names of scalar
    parameters, by position. `zero`: positions of outputs and inputs to set to zero, except outputs that a caller gives.
    """

    def __init__(
        self,
        params: Sequence[KernelParam],
        out_idx: Sequence[int],
        target: str,
        scalars: Mapping[int, str] | None = None,
        zero: Sequence[int] = (),
    ) -> None:
        self.params, self.positions, self._device = params, tuple(out_idx), device_type(target)
        self._zero, self._scalars, self._check = tuple(zero), dict(scalars or {}), launch.gate(params, outputs=out_idx)
        self._in_idx = tuple(i for i in range(len(params)) if i not in self.positions)
        fixed = [i for i in self.positions if all(isinstance(size, int) for size in _declared(params[i]))]
        self._fixed = {i: self._layout(i, {}) for i in fixed}

    def complete(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return all arguments in order, and set the inputs in `zero` to zero. `given`: the inputs, or all parameters.
        Raises the errors of `among`."""
        arguments = given if len(given) == len(self.params) else self.among(given)
        self._check(arguments)
        for i in self._zero:
            if i not in self.positions:
                arguments[i].zero_()
        return arguments

    def among(self, inputs: Sequence[Any]) -> list[Any]:
        """Return all arguments in order: `inputs` at their positions, and new outputs. Raises `ValueError` if `inputs`
        do not determine the size of an output."""
        import torch

        arguments: list[Any] = [None] * len(self.params)
        for i, value in zip(self._in_idx, inputs, strict=True):
            arguments[i] = value
        known: dict[str, int] = {}
        if len(self._fixed) < len(self.positions):
            bind_dimensions([self.params[i] for i in self._in_idx], inputs, known)
            for i, name in self._scalars.items():
                value = arguments[i]
                known[name] = value if hasattr(value, "node") else int(value)  # under torch.compile it stays symbolic
        device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), None)
        if device is None:
            device = torch.device("cpu" if self._device == "cpu" else f"cuda:{torch.cuda.current_device()}")
        for i in self.positions:
            shape, strides = self._fixed.get(i) or self._layout(i, known)
            dtype = torch_dtype(self.params[i].dtype)
            if not shape:
                raise ValueError(f"output {i} has no dimensions, so it cannot be allocated: pass every parameter")
            if strides:
                arguments[i] = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            else:
                arguments[i] = torch.empty(shape, dtype=dtype, device=device)
            if i in self._zero:
                arguments[i].zero_()
        return arguments

    def _layout(self, i: int, known: Mapping[str, int]) -> tuple[list[int], list[int]]:
        """Return the shape and the strides of an output. The strides are empty for a contiguous output."""
        declared, rank = _declared(self.params[i]), len(self.params[i].shape or ())
        sizes = []
        for size in declared:
            value = launch.size_of(size, known)
            if value is None:
                raise ValueError(
                    f"output {i} is {list(declared)}, but the inputs do not determine {size!r}: pass every parameter, "
                    "outputs included"
                )
            sizes.append(value)
        return sizes[:rank], sizes[rank:]


def _declared(param: KernelParam) -> tuple[int | str, ...]:
    """Return a parameter's shape, followed by its strides."""
    return (*(param.shape or ()), *(param.strides or ()))
