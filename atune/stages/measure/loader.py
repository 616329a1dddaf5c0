"""Artifact → callable. Used by the benchmark process, and by `TuneResult.kernel` in the user's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import AtuneError
from atune.model.artifact import Artifact
from atune.stages import tilelang
from atune.stages.measure.tensors import Outputs, bind_dimensions, check_arguments, device_type, output_positions
from atune.stages.measure.torch_op import OpKernel, argument_names, positions, register_op, without_gradients


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
