"""The fields of a record as the parameters of a function, written once and visible to `help` and type checkers.

A function decorated here takes ``*args, **kwargs`` and makes the record from them. For an unknown parameter the
record raises a TypeError with its name.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

P = ParamSpec("P")
Owner = TypeVar("Owner")
Returned = TypeVar("Returned")


def takes(record: Callable[P, object]) -> Callable[[Callable[..., Returned]], Callable[P, Returned]]:
    """Show the fields of the dataclass `record` as the parameters of a function.

    They replace ``*args`` and ``**kwargs`` and follow the parameters that the function names itself. Without
    ``*args`` they are keyword-only.
    """

    def decorated(function: Callable[..., Returned]) -> Callable[P, Returned]:
        _show(function, record)
        return function

    return decorated


def method_takes(
    record: Callable[P, object],
) -> Callable[[Callable[Concatenate[Owner, ...], Returned]], Callable[Concatenate[Owner, P], Returned]]:
    """Show the fields of the dataclass `record` as the parameters of a method, as `takes` does."""

    def decorated(method: Callable[Concatenate[Owner, ...], Returned]) -> Callable[Concatenate[Owner, P], Returned]:
        _show(method, record)
        return method

    return decorated


def _show(function: Any, record: Any) -> None:
    """Set the function's signature and annotations. Does not wrap it, because warnings count frames to its caller."""
    signature = inspect.signature(function)
    own = signature.parameters.values()
    named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    positional = any(p.kind is p.VAR_POSITIONAL for p in own)
    taken = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if positional else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=field.type,
        )
        for field in dataclasses.fields(record)
        if field.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*named, *taken])
    hints = get_type_hints(record)
    function.__annotations__ = {
        **{p.name: p.annotation for p in named if p.annotation is not p.empty},
        **{p.name: hints[p.name] for p in taken},
        "return": signature.return_annotation,
    }
