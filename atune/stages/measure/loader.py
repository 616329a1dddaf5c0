"""Artifact → callable. Used by the benchmark process, and by `TuneResult.kernel` in the user's own."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.errors import AtuneError
from atune.model.artifact import Artifact, KernelParam
from atune.stages.measure.sizes import size_of


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
    from tilelang import tvm

    try:
        function: Callable[..., None] = tvm.runtime.load_module(artifact.path)[artifact.symbol]
    except Exception as error:
        raise LoadError(f"{artifact.path} has no kernel {artifact.symbol}: {error}") from error
    return function


def c_function(artifact: Artifact) -> Any:
    """Return the C function of one member of a library for the CPU. Raises `LoadError`."""
    try:
        function = getattr(ctypes.CDLL(artifact.path), f"{artifact.symbol}_kernel")
    except (OSError, AttributeError) as error:
        raise LoadError(f"{artifact.path} has no kernel {artifact.symbol}: {error}") from error
    function.restype = ctypes.c_int32
    return function


def _load_c(artifact: Artifact) -> Callable[..., None]:
    function = c_function(artifact)
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
            if isinstance(name, str) and known.setdefault(name, size) != size:
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


def check_arguments(params: Sequence[KernelParam], arguments: Sequence[Any], device: str | None = None) -> None:
    """Raise `ValueError` or `TypeError` for an argument that the kernel cannot take.

    `device`: torch's type of the device where tensors must be. None takes tensors without memory, such as fake ones,
    and ignores their strides.
    """
    for position, (param, tensor) in enumerate(zip(params, arguments, strict=True)):
        if param.shape is None:
            continue
        if not hasattr(tensor, "stride"):
            raise TypeError(
                f"parameter {position}: the kernel takes a tensor of {param.dtype} {list(param.shape)}; got {tensor!r}"
            )
        shape = tuple(tensor.shape)
        fits = len(shape) == len(param.shape) and all(
            isinstance(want, str) or want == got for want, got in zip(param.shape, shape, strict=True)
        )
        right = fits and (device is None or has_layout(param, tensor))
        elsewhere = device is not None and tensor.device.type != device
        if not right or elsewhere or tensor.dtype != torch_dtype(param.dtype):
            wanted = "contiguous" if param.strides is None else f"with strides {list(param.strides)}"
            layout = "" if right or not fits else f", with strides {list(tensor.stride())}"
            layout += f", on {tensor.device} and not on {device}" if elsewhere else ""
            raise ValueError(
                f"parameter {position}: the kernel takes {param.dtype} {list(param.shape)}, {wanted}; "
                f"got {str(tensor.dtype).removeprefix('torch.')} {list(shape)}{layout}"
            )


class Kernel:
    """A tuned kernel. Call it with the inputs and it returns the outputs, or with every parameter and it returns None.

    Inputs are torch tensors of the shapes and dtypes that the kernel was tuned for, on its device. They are contiguous,
    except for parameters that are declared with strides. The kernel is launched on torch's current stream. Inputs that
    require grad are refused while gradients are recorded: `as_op` takes a backward.
    """

    def __init__(self, artifact: Artifact, out_idx: Sequence[int], writes: Sequence[int] = ()) -> None:
        self.artifact = artifact
        self.out_idx = output_positions(artifact.params, out_idx)
        self.writes = tuple(writes)
        """Positions of inputs that the kernel was seen to write into when it was measured."""
        self._function = load(artifact)
        self._outputs = Outputs(artifact.params, self.out_idx, artifact.target)
        self._guarded = without_gradients(self._call)

    def __call__(self, *tensors: Any) -> Any:
        return self._guarded(*tensors)

    def _call(self, *tensors: Any) -> Any:
        params = self.artifact.params
        if len(tensors) == len(params):
            self._launch(tensors)
            return None
        if len(tensors) != len(params) - len(self.out_idx):
            n_in = len(params) - len(self.out_idx)
            raise TypeError(
                f"expected {n_in} inputs (outputs are returned) or all {len(params)} parameters, got {len(tensors)}"
            )
        arguments = self._outputs.among(tensors)
        self._launch(arguments)
        outputs = tuple(arguments[i] for i in self.out_idx)
        return outputs[0] if len(outputs) == 1 else outputs

    def as_op(
        self,
        name: str,
        *,
        backward: Callable[..., Any] | None = None,
        setup_context: Callable[..., Any] | None = None,
        mutates: Sequence[int] | None = None,
    ) -> Any:
        """Return the kernel as a `torch.library` custom operator, for `torch.compile`, fake tensors and autograd.

        Parameters
        ----------
        name
            With its library, such as ``mylib::gemm``; the operator is also ``torch.ops.mylib.gemm``. It is registered
            until the program ends.
        backward, setup_context
            As for `torch.library.register_autograd`. Without them, inputs that require grad are refused.
        mutates
            Positions of the parameters that the kernel writes into in place; outputs among them are given by the
            caller, and not returned. None: the inputs that it was seen to write into when it was measured.

        Raises `UsageError` for a name that is taken by another kernel, and for what torch cannot register.
        """
        from atune.stages.measure.torch_op import OpKernel, argument_names, positions, register_op

        params = self.artifact.params
        written = positions(params, "mutates", self.writes if mutates is None else mutates)
        returned = tuple(i for i in self.out_idx if i not in written)
        outputs = Outputs(params, returned, self.artifact.target)

        def launch(*tensors: Any) -> tuple[Any, ...]:
            arguments = outputs.among(tensors)
            self._launch(arguments)
            return tuple(arguments[i] for i in returned)

        op = OpKernel(
            params=params,
            names=argument_names([""] * len(params)),
            returned=returned,
            mutates=written,
            target=self.artifact.target,
            launch=launch,
            identity=(self.artifact.path, self.artifact.symbol),
        )
        return register_op(name, op, backward=backward, setup_context=setup_context)

    def _launch(self, arguments: Sequence[Any]) -> None:
        # The C function takes bare pointers: a wrong tensor would be read out of bounds.
        check_arguments(self.artifact.params, arguments, device_type(self.artifact.target))
        self._function(*arguments)

    def __repr__(self) -> str:
        return f"<atune kernel {self.artifact.symbol} for {self.artifact.target}>"


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` for calls without gradients: it raises RuntimeError where an argument requires a recorded one.

    The outputs would lack the way back to that argument, and its gradient would be wrong without a word.
    """
    import torch

    recorded = torch.is_grad_enabled

    def call(*arguments: Any) -> Any:
        if recorded():
            for position, argument in enumerate(arguments):
                if getattr(argument, "requires_grad", False):
                    raise RuntimeError(
                        f"argument {position} requires grad, and the kernel has no backward: give one by "
                        "as_op(name, backward=…), or call it under torch.no_grad() or with detached tensors"
                    )
        return run(*arguments)

    return call


def output_positions(params: Sequence[KernelParam], out_idx: Sequence[int]) -> tuple[int, ...]:
    """Turn negative positions into positive ones. Raises `IndexError` for one that is not there."""
    n = len(params)
    for i in out_idx:
        if not -n <= i < n:
            raise IndexError(f"out_idx {i}: the kernel has {n} parameters")
    return tuple(sorted(i % n for i in out_idx))


class Outputs:
    """Makes a kernel's outputs: uninitialised tensors on the device of the first tensor that is given.

    Without one they are on the target's current device. Dimensions may be numbers, names that a given tensor binds, or
    sums and products of these. `scalars`: the names of parameters that are numbers, by position; a dimension may have
    such a name, too.
    """

    def __init__(
        self,
        params: Sequence[KernelParam],
        out_idx: Sequence[int],
        target: str,
        scalars: Mapping[int, str] | None = None,
    ) -> None:
        self._params, self._out_idx, self._device = params, tuple(out_idx), device_type(target)
        self._in_idx = tuple(i for i in range(len(params)) if i not in self._out_idx)
        self._scalars = {i: name for i, name in (scalars or {}).items() if i in self._in_idx}
        self._fixed = {i: self._layout(i, {}) for i in self._out_idx if not _is_symbolic(params[i])}
        self._symbolic = len(self._fixed) < len(self._out_idx)

    def among(self, inputs: Sequence[Any]) -> list[Any]:
        """Return all arguments in order: `inputs` where they belong, and fresh outputs.

        Raises `ValueError` for an output whose size `inputs` do not tell.
        """
        import torch

        arguments: list[Any] = [None] * len(self._params)
        for i, value in zip(self._in_idx, inputs, strict=True):
            arguments[i] = value
        known = self._bound(arguments) if self._symbolic else {}
        device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), None)
        if device is None:
            device = torch.device("cpu" if self._device == "cpu" else f"cuda:{torch.cuda.current_device()}")
        for i in self._out_idx:
            shape, strides = self._fixed.get(i) or self._layout(i, known)
            dtype = torch_dtype(self._params[i].dtype)
            if not shape:
                raise ValueError(f"output {i} has no dimensions, and cannot be allocated: give it, as every parameter")
            if strides is None:
                arguments[i] = torch.empty(shape, dtype=dtype, device=device)
            else:
                arguments[i] = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        return arguments

    def _layout(self, i: int, known: Mapping[str, int]) -> tuple[list[int], list[int] | None]:
        param = self._params[i]
        strides = None if param.strides is None else self._sizes(i, param.strides, known)
        return self._sizes(i, param.shape or (), known), strides

    def _bound(self, arguments: Sequence[Any]) -> dict[str, int]:
        known = bind_dimensions([self._params[i] for i in self._in_idx], [arguments[i] for i in self._in_idx])
        return {**known, **{name: _whole(arguments[i]) for i, name in self._scalars.items()}}

    def _sizes(self, i: int, sizes: Sequence[int | str], known: Mapping[str, int]) -> list[int]:
        found = [size if isinstance(size, int) else size_of(size, known) for size in sizes]
        for size, value in zip(sizes, found, strict=True):
            if value is None:
                raise ValueError(
                    f"output {i} is {list(sizes)}, and the inputs do not tell {size!r}: give every parameter, outputs "
                    "included"
                )
        return [value for value in found if value is not None]


def _whole(value: Any) -> Any:
    """Return a number that is given as a Python int; one that torch traces stays as it is."""
    return value if hasattr(value, "node") else int(value)


def _is_symbolic(param: KernelParam) -> bool:
    return any(isinstance(size, str) for size in (*(param.shape or ()), *(param.strides or ())))


def device_type(target: str) -> str:
    """Return torch's name for where kernels for `target` run."""
    return "cpu" if target == "c" else "cuda"


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return strides


@functools.cache
def torch_dtype(name: str) -> Any:
    """Return torch's dtype for a TileLang dtype name, such as ``bfloat16`` or ``float8_e4m3fn``."""
    import torch

    names = {"float8_e4m3": "float8_e4m3fn", "bool": "bool", "uint1": "bool"}
    dtype = getattr(torch, names.get(name, name), None)
    if dtype is None:
        raise ValueError(f"torch has no dtype for TileLang's {name}")
    return dtype


def load_kernel(artifact: Artifact, out_idx: Sequence[int], writes: Sequence[int] = ()) -> Kernel:
    """Return the callable that `TuneResult.kernel` hands out. Raises `LoadError`."""
    return Kernel(artifact, out_idx, writes)
