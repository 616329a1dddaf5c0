"""A kernel's library, and what a call of known sizes does: allocate the outputs, and launch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.bundle.arguments import PLAIN, output_layout, positions, torch_dtype
from atune.bundle.cuda import cuda_function
from atune.bundle.errors import DamagedBundle, WrongArguments
from atune.bundle.manifest import BundledKernel

Plan = Callable[[Sequence[Any]], Any]
"""Calls a kernel with arguments of one signature, and returns what the call returns."""
Launch = Callable[[Sequence[Any]], None]
"""Launches a kernel with all of its parameters."""
C_TYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64}
"""C types of parameters that are numbers. Smaller integers travel as 32 bits."""


def plan(kernel: BundledKernel, folder: Path, target: str, arguments: Sequence[Any], sizes: Mapping[str, int]) -> Plan:
    """Return what a call of `kernel` with arguments like these does. `sizes`: values of its symbolic dimensions.

    Raises `DamagedBundle` if the library does not load, and `WrongArguments` for outputs of unknown size.
    """
    path = str((folder / f"{kernel.library}.so").absolute())
    try:
        launch = _c_launch(path, kernel, sizes) if target == "c" else _cuda_launch(path, kernel, folder)
    except (OSError, AttributeError, RuntimeError) as error:
        raise DamagedBundle(f"library {kernel.library} does not load: {error}") from error
    if zero_inputs := [i for i in kernel.zero if i not in kernel.outputs]:
        launch = _zeroing(zero_inputs, launch)
    given = positions(kernel, len(arguments))
    made = (
        launch if given is None or len(given) == len(kernel.params) else _allocating(kernel, launch, arguments, sizes)
    )
    return _without_gradients(made) if any(getattr(one, "requires_grad", False) for one in arguments) else made


def _c_launch(path: str, kernel: BundledKernel, sizes: Mapping[str, int]) -> Launch:
    """Return the C function of `kernel`, as a function of tensors and numbers."""
    function = getattr(ctypes.CDLL(path), f"{kernel.symbol}_kernel")
    function.restype, function.argtypes = ctypes.c_int32, [_c_type(kernel, what) for what in kernel.calls]
    tensors = [(slot, i) for slot, i in enumerate(kernel.calls) if isinstance(i, int) and _is_tensor(kernel, i)]
    numbers = [(slot, i) for slot, i in enumerate(kernel.calls) if isinstance(i, int) and not _is_tensor(kernel, i)]
    dimensions = [sizes[what] if isinstance(what, str) else None for what in kernel.calls]

    def launch_tensors(arguments: Sequence[Any]) -> None:
        _check(kernel, function(*[tensor.data_ptr() for tensor in arguments]))

    def launch(arguments: Sequence[Any]) -> None:
        values: list[Any] = dimensions.copy()
        for slot, i in tensors:
            values[slot] = arguments[i].data_ptr()
        for slot, i in numbers:
            values[slot] = arguments[i]
        try:
            _check(kernel, function(*values))
        except ctypes.ArgumentError as error:
            raise WrongArguments(f"a number is of the wrong kind: {error}") from error

    return launch_tensors if tensors == [(i, i) for i in range(len(kernel.calls))] else launch


def _c_type(kernel: BundledKernel, what: int | str) -> Any:
    if isinstance(what, str):
        return ctypes.c_int32
    return ctypes.c_void_p if _is_tensor(kernel, what) else C_TYPES.get(kernel.params[what].dtype, ctypes.c_int32)


def _is_tensor(kernel: BundledKernel, position: int) -> bool:
    return kernel.params[position].shape is not None


def _check(kernel: BundledKernel, status: int) -> None:
    if status != 0:
        raise RuntimeError(f"{kernel.symbol} returned {status}")


def _cuda_launch(path: str, kernel: BundledKernel, folder: Path) -> Launch:
    function = cuda_function(path, kernel.symbol, folder)

    def launch(arguments: Sequence[Any]) -> None:
        function(*arguments)

    return launch


def _allocating(kernel: BundledKernel, launch: Launch, inputs: Sequence[Any], sizes: Mapping[str, int]) -> Plan:
    """Return a function of the inputs that allocates the outputs, launches, and returns them."""
    import torch

    here = next((one.device for one in inputs if one.__class__ not in PLAIN), None)
    device = here or torch.device("cpu" if kernel.calls else "cuda")  # without an index: torch's current one
    makers = []
    for i in kernel.outputs:
        shape, strides = output_layout(kernel, i, sizes)
        dtype = torch_dtype(kernel.params[i].dtype)
        if kernel.params[i].strides is None:
            make = torch.zeros if i in kernel.zero else torch.empty
            makers.append(functools.partial(make, shape, dtype=dtype, device=device))
        else:
            makers.append(functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device))
    strided = [k for k, i in enumerate(kernel.outputs) if i in kernel.zero and kernel.params[i].strides is not None]
    order = [(*kernel.inputs, *kernel.outputs).index(i) for i in range(len(kernel.params))]
    moved, one = order != sorted(order), len(makers) == 1

    def run(arguments: Sequence[Any]) -> Any:
        outputs = [make() for make in makers]
        for k in strided:
            outputs[k].zero_()
        parameters = [*arguments, *outputs]
        launch([parameters[i] for i in order] if moved else parameters)
        return outputs[0] if one else tuple(outputs)

    return run


def _zeroing(positions: Sequence[int], launch: Launch) -> Launch:
    """Return `launch`, after it sets the inputs at `positions` to zero."""

    def run(arguments: Sequence[Any]) -> None:
        for i in positions:
            arguments[i].zero_()
        launch(arguments)

    return run


def _without_gradients(plan: Plan) -> Plan:
    """Return `plan`, refusing to run while torch records gradients, which would be lost silently."""
    import torch

    def run(arguments: Sequence[Any]) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("an input requires grad, and a bundle has no backward: call it under torch.no_grad()")
        return plan(arguments)

    return run
