"""Callbacks that are opened only where they are called.

Workers get a workload by value. What only a device's process needs, such as a reference, is opened there alone: a CUDA
tensor in a callback's closure must not make a CUDA context in every compile worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class Sealed:
    """A callback that is opened where it is first called. `func` is the caller's own, in the caller's process only."""

    func: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        self.__signature__ = _signature(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.func(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return _Unopened, (cloudpickle.dumps(self.func), self.__signature__)


class _Unopened:
    """A sealed callback in a worker."""

    def __init__(self, blob: bytes, signature: inspect.Signature) -> None:
        self._blob, self.__signature__ = blob, signature
        self._function: Callable[..., Any] | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self._function is None:
            import cloudpickle

            self._function = cloudpickle.loads(self._blob)
        assert self._function is not None
        return self._function(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Unopened, (self._blob, self.__signature__)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])
