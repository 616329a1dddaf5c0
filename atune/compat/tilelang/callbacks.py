"""The user's callbacks, values and tensors, made ready for the workers.

Workers get a workload by value. What only a device's process needs (references, checks, tensors) is opened there
alone: a CUDA tensor in a callback's closure must not make a CUDA context in every compile worker.
"""

from __future__ import annotations

import enum
import inspect
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.artifact import KernelParam

PLAIN = (type(None), bool, int, float, str)


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


class KeptFile:
    """A file that lives as long as this object, in the process that made it."""

    def __init__(self, path: str) -> None:
        self._path = path
        weakref.finalize(self, Path(path).unlink, missing_ok=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _OthersFile, (self._path,)


class _OthersFile:
    def __init__(self, path: str) -> None:
        self._path = path


def given_tensors(tensors: Sequence[Any]) -> Callable[[], list[Any]]:
    """Return an `inputs` function that gives these tensors, which travel in a file and not to every worker.

    What identifies it is their metadata: dtypes, shapes and strides, and scalars by value.
    """
    import torch

    values = [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in tensors]
    with tempfile.NamedTemporaryFile(prefix="atune-inputs-", suffix=".pt", delete=False) as file:
        torch.save(values, file)
    kept = KeptFile(file.name)
    metadata = tuple(
        (str(v.dtype), tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else ("value", repr(v))
        for v in tensors
    )

    def inputs() -> list[Any]:
        import torch

        assert metadata is not None  # part of the closure, and so of the workload's identity
        found: list[Any] = torch.load(kept._path, weights_only=True)
        return found

    return inputs


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


def is_plain(value: Any) -> bool:
    """Tell whether a journal keeps `value` as it is: exactly None, bool, int, float, str, or tuples, lists and dicts
    of these. An IntEnum, or tilelang's dtypes, which are strings, are more than their value."""
    if type(value) in (list, tuple):
        return all(is_plain(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return type(value) in PLAIN


def described(value: Any) -> str:
    """Return a text that stands for `value` in journals: without addresses, so that it is the same in each run."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    return f"{type(value).__name__}" if " at 0x" in text or " object at " in text else text


def by_text(
    kernel: Any, names: Collection[str], fixed: Mapping[str, Any], choices: Mapping[str, Mapping[str, Any]]
) -> Any:
    """Return `kernel` as a function of `names`, with `fixed` bound and texts in place of values that are no data.

    `choices`: for each parameter, the value of each text; the workers look them up.
    """
    own = inspect.signature(python_function(kernel)).parameters
    bound, tables = dict(fixed), {name: dict(table) for name, table in choices.items()}

    def adapted(**arguments: Any) -> Any:
        values = {n: tables[n].get(v, v) if n in tables and isinstance(v, str) else v for n, v in arguments.items()}
        make = getattr(kernel, "get_tir", None) or kernel
        return make(**bound, **values)

    taken = []
    for name in names:
        default = own[name].default if name in own else inspect.Parameter.empty
        if name in tables and default is not inspect.Parameter.empty:
            default = default if is_plain(default) else described(default)
        taken.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    adapted.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    adapted.__name__ = getattr(python_function(kernel), "__name__", "kernel")
    return adapted


def python_function(kernel: Any) -> Any:
    """Return the Python function inside `@tilelang.jit`'s wrapper, or `kernel` itself."""
    inner = getattr(kernel, "func", None)
    return getattr(inner, "orig_func", None) or (inner if inspect.isfunction(inner) else kernel)
