"""Artifact → callable. Used by the benchmark process, and by `TuneResult.kernel` in the user's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import AtuneError
from atune.model.artifact import Artifact, Roles
from atune.stages import tilelang
from atune.stages.measure.tensors import Outputs, bind_dimensions, check_arguments, device_type
from atune.stages.measure.torch_op import op_kernel, register_op, without_gradients


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
    try:
        function: Callable[..., None] = tilelang.tvm.runtime.load_module(artifact.path)[artifact.symbol]
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


class Kernel:
    """A tuned kernel. Call it with the inputs and it returns the outputs, or with every parameter and it returns None.

    Outputs that it makes are prepared as when it was checked. Those that are given are the caller's to prepare.
    Inputs are torch tensors of the shapes and dtypes that the kernel was tuned for, on its device. They are contiguous,
    except for parameters that are declared with strides. The kernel is launched on torch's current stream. Inputs that
    require grad are refused while gradients are recorded: `as_op` takes a backward.
    """

    def __init__(self, artifact: Artifact, roles: Roles) -> None:
        self.artifact, self.roles = artifact, roles.handed_out()
        self._function = load(artifact)
        self._outputs = Outputs(artifact.params, roles.outputs, artifact.target, zero=roles.zero)
        self._guarded = without_gradients(self._call)

    def __call__(self, *tensors: Any) -> Any:
        return self._guarded(*tensors)

    def _call(self, *tensors: Any) -> Any:
        n, n_out = len(self.artifact.params), len(self.roles.outputs)
        if len(tensors) not in (n, n - n_out):
            raise TypeError(
                f"expected {n - n_out} inputs (outputs are returned) or all {n} parameters, got {len(tensors)}"
            )
        arguments = self._outputs.complete(tensors)
        self._launch(*arguments)
        if len(tensors) == n:
            return None
        outputs = tuple(arguments[i] for i in self.roles.outputs)
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
            caller, and not returned. None: the inputs that it may write into.

        Raises `UsageError` for a name that is taken by another kernel, and for what torch cannot register.
        """
        artifact = self.artifact
        identity, names = (artifact.path, artifact.symbol), [""] * len(artifact.params)
        op = op_kernel(artifact.params, names, self.roles, mutates, artifact.target, self._launch, identity)
        return register_op(name, op, backward=backward, setup_context=setup_context)

    def _launch(self, *arguments: Any) -> None:
        # The C function takes bare pointers: a wrong tensor would be read out of bounds.
        check_arguments(self.artifact.params, arguments, device_type(self.artifact.target))
        self._outputs.zero_inputs(arguments)
        self._function(*arguments)

    def __repr__(self) -> str:
        return f"<atune kernel {self.artifact.symbol} for {self.artifact.target}>"
