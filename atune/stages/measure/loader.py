"""Artifact → callable. Used by the benchmark process, and by `TuneResult.kernel` in the user's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import AtuneError
from atune.model.artifact import Artifact, KernelParam


class LoadError(AtuneError):
    """The library is gone, or has no such symbol."""


def load(artifact: Artifact) -> Callable[..., None]:
    """Return a function of all the kernel's parameters, outputs included, that launches it.

    CUDA launches go to torch's current stream. Raises `LoadError`.
    """
    if not os.path.exists(artifact.path):
        raise LoadError(f"{artifact.path} is gone; tune again to rebuild it")
    return _load_c(artifact) if artifact.target == "c" else _load_cuda(artifact)


def _load_cuda(artifact: Artifact) -> Callable[..., None]:
    if artifact.backend:
        from atune.stages.measure import adapters

        try:
            return adapters.load(artifact)
        except (OSError, RuntimeError, ImportError) as error:
            raise LoadError(f"{artifact.path} cannot be loaded: {error}") from error
    from tilelang import tvm

    try:
        function: Callable[..., None] = tvm.runtime.load_module(artifact.path)[artifact.symbol]
    except Exception as error:
        raise LoadError(f"{artifact.path} has no kernel {artifact.symbol}: {error}") from error
    return function


def _load_c(artifact: Artifact) -> Callable[..., None]:
    try:
        function = getattr(ctypes.CDLL(artifact.path), f"{artifact.symbol}_kernel")
    except (OSError, AttributeError) as error:
        raise LoadError(f"{artifact.path} has no kernel {artifact.symbol}: {error}") from error
    function.restype = ctypes.c_int32
    params, calls = artifact.params, artifact.calls
    dims = [c for c in calls if isinstance(c, str)]
    scalar = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64}

    def call(*arguments: Any) -> None:
        known = bind_dimensions(params, arguments) if dims else {}
        values: list[Any] = []
        for what in calls:
            if isinstance(what, str):
                values.append(ctypes.c_int32(known[what]))
            elif params[what].shape is None:
                values.append(scalar.get(params[what].dtype, ctypes.c_int32)(arguments[what]))
            else:
                values.append(ctypes.c_void_p(arguments[what].data_ptr()))
        status = function(*values)
        if status != 0:
            raise RuntimeError(f"{artifact.symbol} returned {status}")

    return call


def bind_dimensions(params: Sequence[KernelParam], arguments: Sequence[Any]) -> dict[str, int]:
    """Read the symbolic dimensions' and strides' values off the tensors that were given."""
    known: dict[str, int] = {}
    for param, argument in zip(params, arguments, strict=True):
        if not hasattr(argument, "stride"):
            continue
        names = (*(param.shape or ()), *(param.strides or ()))
        sizes = (*argument.shape, *(argument.stride() if param.strides else ()))
        for name, size in zip(names, sizes, strict=False):
            if isinstance(name, str) and known.setdefault(name, int(size)) != int(size):
                raise ValueError(f"dimension {name} is {known[name]} in one tensor and {size} in another")
    return known


def has_layout(param: KernelParam, tensor: Any) -> bool:
    """Tell whether a tensor lies in memory as `param` is declared: contiguous, or with these strides.

    The stride of a dimension of size one or less does not matter; a symbolic one can be any.
    """
    if param.strides is None:
        return bool(tensor.is_contiguous())
    layout = zip(param.strides, tensor.stride(), tensor.shape, strict=True)
    return all(isinstance(want, str) or want == got or size <= 1 for want, got, size in layout)


class Kernel:
    """A tuned kernel. Call it with the inputs and it returns the outputs, or with every parameter and it returns None.

    Inputs are torch tensors of the shapes and dtypes that the kernel was tuned for, on its device; contiguous, but
    for parameters that are declared with strides of their own.
    """

    def __init__(self, artifact: Artifact, out_idx: Sequence[int]) -> None:
        self.artifact = artifact
        self.out_idx = output_positions(artifact.params, out_idx)
        self._function = load(artifact)

    def __call__(self, *tensors: Any) -> Any:
        params = self.artifact.params
        if len(tensors) == len(params):
            self._check(tensors)
            self._function(*tensors)
            return None
        if len(tensors) != len(params) - len(self.out_idx):
            n_in = len(params) - len(self.out_idx)
            raise TypeError(
                f"expected {n_in} inputs (outputs are returned) or all {len(params)} parameters, got {len(tensors)}"
            )
        arguments = with_outputs(params, self.out_idx, tensors)
        self._check(arguments)
        self._function(*arguments)
        outputs = tuple(arguments[i] for i in self.out_idx)
        return outputs[0] if len(outputs) == 1 else outputs

    def _check(self, arguments: Sequence[Any]) -> None:
        # The C function takes bare pointers: a wrong tensor would be read out of bounds.
        for position, (param, tensor) in enumerate(zip(self.artifact.params, arguments, strict=True)):
            if param.shape is None:
                continue
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            fits = len(shape) == len(param.shape) and all(
                isinstance(want, str) or want == got for want, got in zip(param.shape, shape, strict=True)
            )
            device = "cpu" if self.artifact.target == "c" else "cuda"
            right = fits and has_layout(param, tensor)
            if not right or dtype != param.dtype or tensor.device.type != device:
                wanted = "contiguous" if param.strides is None else f"with strides {list(param.strides)}"
                layout = "" if right or not fits else f", with strides {list(tensor.stride())}"
                layout += "" if tensor.device.type == device else f", on {tensor.device} and not on {device}"
                raise ValueError(
                    f"parameter {position}: the kernel takes {param.dtype} {list(param.shape)}, {wanted}; "
                    f"got {dtype} {list(shape)}{layout}"
                )

    def __repr__(self) -> str:
        return f"<atune kernel {self.artifact.symbol} for {self.artifact.target}>"


def output_positions(params: Sequence[KernelParam], out_idx: Sequence[int]) -> tuple[int, ...]:
    """Turn negative positions into positive ones. Raises `IndexError` for one that is not there."""
    n = len(params)
    for i in out_idx:
        if not -n <= i < n:
            raise IndexError(f"out_idx {i}: the kernel has {n} parameters")
    return tuple(sorted(i % n for i in out_idx))


def with_outputs(params: Sequence[KernelParam], out_idx: Sequence[int], inputs: Sequence[Any]) -> list[Any]:
    """Return all arguments in order: `inputs` where they belong, fresh uninitialised tensors as outputs."""
    import torch

    remaining = list(inputs)
    arguments: list[Any] = [None if i in out_idx else remaining.pop(0) for i in range(len(params))]
    given = [(p, a) for p, a in zip(params, arguments, strict=True) if a is not None]
    known = bind_dimensions([p for p, _ in given], [a for _, a in given])
    device = next((a.device for a in inputs if hasattr(a, "device")), "cpu")
    for i in out_idx:
        shape = [known[d] if isinstance(d, str) else d for d in params[i].shape or ()]
        strides = [known[d] if isinstance(d, str) else d for d in params[i].strides or contiguous_strides(shape)]
        arguments[i] = torch.empty_strided(shape, strides, dtype=torch_dtype(params[i].dtype), device=device)
    return arguments


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return strides


def torch_dtype(name: str) -> Any:
    """Return torch's dtype for a TileLang dtype name, such as ``bfloat16`` or ``float8_e4m3fn``."""
    import torch

    names = {"float8_e4m3": "float8_e4m3fn", "bool": "bool", "uint1": "bool"}
    dtype = getattr(torch, names.get(name, name), None)
    if dtype is None:
        raise ValueError(f"torch has no dtype for TileLang's {name}")
    return dtype


def load_kernel(artifact: Artifact, out_idx: Sequence[int]) -> Kernel:
    """Return the callable that `TuneResult.kernel` hands out. Raises `LoadError`."""
    return Kernel(artifact, out_idx)
