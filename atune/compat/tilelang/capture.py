"""`set_autotune_inputs`: tensors to tune with, for the tunings inside a `with` block."""

from __future__ import annotations

import sys
from contextvars import ContextVar, Token
from typing import Any

_active: ContextVar[tuple[AutotuneInputsCapture, ...]] = ContextVar("atune_autotune_inputs", default=())


class AutotuneInputsCapture:
    """Context manager: kernels are tuned with `tensors`, in this thread or task."""

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors
        self._tokens: list[Token[tuple[AutotuneInputsCapture, ...]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_active.set((*_active.get(), self)))

    def __exit__(self, *_: object) -> None:
        _active.reset(self._tokens.pop())


def set_autotune_inputs(*args: Any) -> AutotuneInputsCapture:
    """Return a context manager. Takes the tensors as separate arguments or as one list."""
    one = len(args) == 1 and isinstance(args[0], (list, tuple))
    return AutotuneInputsCapture(list(args[0] if one else args))


def get_autotune_inputs() -> list[Any] | None:
    """Return the tensors of the innermost `with` block, or None outside of one.

    A block of tilelang's own `set_autotune_inputs` counts too, for programs that import it from there.
    """
    if active := _active.get():
        return active[-1].tensors
    theirs = sys.modules.get("tilelang.autotuner.capture")
    ask = getattr(theirs, "get_autotune_inputs", None)
    found: list[Any] | None = None if ask is None or ask is get_autotune_inputs else ask()
    return found
