"""The user's functions of a space. Each is called with the values that its parameters name."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from atune.errors import SpaceError


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line that called atune: it is the user's, and so is what to do about the warning."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "atune":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class UserCallback:
    """A function of the user's. Its signature is read once, however often it is called.

    `what` names the call in messages, from the values that the function was offered beside the problem's.
    """

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any], what: Callable[[Any], str]) -> None:
        self._function, self._arguments, self._what = function, arguments, what
        try:
            parameters = tuple(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # builtins without a signature
            parameters = ()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = tuple(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        self._required = {
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def ask(self, values: Mapping[str, Any]) -> Any:
        """Return the answer for `values` and the problem's arguments.

        Raises `SpaceError` if the function needs a value that is missing, or raises.
        """
        available = {**self._arguments, **values}
        wanted = available if self._takes_all else {name: available[name] for name in self._names if name in available}
        try:
            return self._function(**wanted)
        except Exception as error:
            if missing := [name for name in self._names if name in self._required and name not in available]:
                there = ", ".join(available) or "nothing"
                raise SpaceError(
                    f"Space: {self._what(values)} needs {', '.join(missing)}; available: {there}"
                ) from None
            raise SpaceError(f"Space: {self._what(values)} raised {type(error).__name__}: {error}") from error
