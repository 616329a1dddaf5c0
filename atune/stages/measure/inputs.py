"""Inputs of kernels: drawn, as the problem describes them, or the tensors of a call."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.errors import InputsMissing, WorkloadError
from atune.model.artifact import KernelParam
from atune.stages.measure.tensors import extent, size_of, torch_dtype


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
            strides = None if param.strides is None else sized(param.strides, self.symbols)
            found.append(drawn(param, sized(param.shape, self.symbols), device, self.supply, strides))
        return found


class GivenTensors:
    """An `inputs` function that gives these tensors; they travel in a file, and not to every worker.

    The file lives until `discard`, or as long as this object, in the process that made it. `metadata` identifies it:
    dtypes, shapes and strides of tensors, and by value scalars and tensors of integers and booleans, since lengths,
    indices and masks decide what a kernel does.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        import torch

        values = [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in tensors]
        with tempfile.NamedTemporaryFile(prefix="atune-inputs-", suffix=".pt", delete=False) as file:
            torch.save(values, file)
        self._remove = weakref.finalize(self, Path(file.name).unlink, missing_ok=True)
        self._path = file.name
        self.metadata = [
            (str(v.dtype), tuple(v.shape), v.stride(), _content(value))
            if isinstance(v, torch.Tensor)
            else ("value", repr(v))
            for v, value in zip(tensors, values, strict=True)
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


def _content(tensor: Any) -> str:
    """Return a hash of the values in a tensor of integers or booleans in the CPU's memory; empty for others."""
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return hashlib.sha256(tensor.contiguous().numpy()).hexdigest() if whole else ""


class CallInputs(GivenTensors):
    """The tensors that the kernel was called with, for tuning on the same data."""

    cache_identity = "inputs of the call"


def sized(dimensions: Sequence[int | str] | None, sizes: Mapping[str, int]) -> list[int]:
    """Return dimensions as numbers. Raises `WorkloadError` for a symbolic one without a size."""
    return [_size(d, sizes) if isinstance(d, str) else d for d in dimensions or ()]


def _size(text: str, sizes: Mapping[str, int]) -> int:
    if (found := size_of(text, sizes)) is None:
        raise WorkloadError(
            f"dimension {text!r} is symbolic, and nothing says its size: give tensors of the size to tune for, such as "
            "Workload(…, inputs=[torch.randn(4096, 64)]). Where outputs alone have it, give all parameters' tensors"
        )
    return found
