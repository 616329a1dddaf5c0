"""Callbacks that are unpickled only in the process that calls them.

Workers get a workload by value. Only device workers unpickle parts such as the reference. A CUDA tensor in a
callback's closure must not make a CUDA context in every compile worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from atune.workload.packing import Part, pack, unpack_parts


class Sealed:
    """A callback that is unpickled at its first call. `func` is the original, in the caller's process only."""

    func: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        self.__signature__ = _signature(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.func(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        packed = pack(self.func)
        return _Unopened, (packed.stream, self.__signature__, [Part(memory) for memory in packed.parts], packed.buffers)


class _Unopened:
    """A sealed callback in a worker."""

    def __init__(
        self, stream: bytes, signature: inspect.Signature, parts: Sequence[Part] = (), buffers: Sequence[int] = ()
    ) -> None:
        self._packed, self.__signature__ = (stream, parts, buffers), signature
        self._function: Callable[..., Any] | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self._function is None:
            stream, parts, buffers = self._packed
            self._function = unpack_parts(stream, [part.memory for part in parts], buffers)
        assert self._function is not None
        return self._function(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        stream, parts, buffers = self._packed
        return _Unopened, (stream, self.__signature__, parts, buffers)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])
