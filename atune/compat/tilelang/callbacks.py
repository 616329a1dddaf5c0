"""The user's callbacks and tensors, made ready for the workers.

Workers get a workload by value. What only a device's process needs (references, checks, tensors) is opened there
alone: a CUDA tensor in a callback's closure must not make a CUDA context in every compile worker.
"""

from __future__ import annotations

import inspect
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atune.artifact import KernelParam


class Sealed:
    """A callback that is opened where it is first called. `func` is the caller's own, in the caller's process only."""

    func: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        self.__signature__ = _signature(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *values: Any) -> Any:
        return self.func(*values)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return _Unopened, (cloudpickle.dumps(self.func), self.__signature__)


class _Unopened:
    """A sealed callback in a worker."""

    def __init__(self, blob: bytes, signature: inspect.Signature) -> None:
        self._blob, self.__signature__ = blob, signature
        self._function: Callable[..., Any] | None = None

    def __call__(self, *values: Any) -> Any:
        if self._function is None:
            import cloudpickle

            self._function = cloudpickle.loads(self._blob)
        assert self._function is not None
        return self._function(*values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Unopened, (self._blob, self.__signature__)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])


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


def supplied(supply_prog: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `inputs` function that asks tilelang's `supply_prog(params)`, anew for each set of inputs."""
    sealed = Sealed(supply_prog)

    def inputs(parameters: Sequence[KernelParam]) -> list[Any]:
        return list(sealed([_tilelang_param(parameter) for parameter in parameters]))

    return inputs


def _tilelang_param(parameter: KernelParam) -> Any:
    from tilelang import tvm
    from tilelang.engine.param import KernelParam as Theirs

    shape = [tvm.tirx.Var(d, "int32") if isinstance(d, str) else d for d in parameter.shape or ()]
    return Theirs(tvm.DataType(parameter.dtype), shape)
