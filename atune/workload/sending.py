"""What can be sent to other processes, and of what cannot, the object because of which and where it is held."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from atune.errors import message_of, type_of
from atune.workload.fingerprint import global_names
from atune.workload.packing import pack

WRAPPED = ("func", "orig_func", "__wrapped__")
"""Attributes in which a wrapper, such as that of `@tilelang.jit`, holds its function."""
Held = list[tuple[str, Any]]
"""Objects, each after how another one holds it; empty where that goes without saying."""


def can_be_sent(part: Any) -> bool:
    """Tell whether `part` can be sent to other processes. A closure over a lock, for example, cannot."""
    try:
        pack(part)
    except Exception:  # pickling may raise anything
        return False
    return True


def refusal(parts: Held, error: Exception) -> str:
    """Return which object in `parts` cannot be sent, where it is held, and what to do. `error`: what pickling raised.

    For example ``kernel → closure variable 'op' → attribute 'lock', a lock, cannot be sent to the workers (…)``.
    """
    way = _way(parts, set()) or parts[0][0]
    return (
        f"{way} cannot be sent to the workers ({message_of(error)}). Make it inside the function that uses it: locks, "
        "files, CUDA streams and the like belong to one process"
    )


def _way(held: Held, passed: set[int]) -> str | None:
    """Return the way to the first object that cannot be sent though all that it holds can, and what it is.

    `passed`: ids of the objects on ways that were gone. None where there is no such object off these ways.
    """
    for how, one in held:
        if id(one) in passed or can_be_sent(one):
            continue
        passed.add(id(one))
        inner = _held(one)
        further = _way(inner, passed)
        if further is None and not all(can_be_sent(each) for _, each in inner):
            continue  # because of what was passed
        return " → ".join(filter(None, [how, further])) if further else f"{how}, {type_of(one)},"
    return None


def _held(one: Any) -> Held:
    """Return what an object is sent with, or else its attributes."""
    if isinstance(one, FunctionType):
        return _held_by_function(one)
    if isinstance(one, MethodType):
        return [("self", one.__self__), ("", one.__func__)]
    if isinstance(one, Mapping):
        return [(f"[{key!r}]", value) for key, value in one.items()]
    if isinstance(one, list | tuple | set | frozenset):
        return [(f"[{place}]", value) for place, value in enumerate(one)]
    if isinstance(one, type):
        return _attributes(vars(one))
    try:
        reduced = one.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # it says so in a way of its own
        reduced = ""
    if isinstance(reduced, str):
        return _attributes(getattr(one, "__dict__", {}))
    held: Held = []
    state = reduced[2] if len(reduced) > 2 else None
    for each in state if isinstance(state, tuple) else [state]:
        held += _attributes(each) if isinstance(each, Mapping) else [("", each)]
    return held + [(f"class {each.__name__!r}" if isinstance(each, type) else "", each) for each in reduced[1]]


def _held_by_function(one: FunctionType) -> Held:
    cells = dict(zip(one.__code__.co_freevars, one.__closure__ or (), strict=True))
    held = [(f"closure variable {name!r}", c.cell_contents) for name, c in cells.items() if c != CellType()]
    names = dict.fromkeys(global_names(one.__code__))
    held += [(f"global {name!r}", one.__globals__[name]) for name in names if name in one.__globals__]
    parameters = inspect.signature(one, follow_wrapped=False).parameters.values()
    held += [(f"default of {p.name!r}", p.default) for p in parameters if p.default is not p.empty]
    return held + _attributes(vars(one))


def _attributes(fields: Mapping[str, Any]) -> Held:
    return [("" if name in WRAPPED else f"attribute {name!r}", value) for name, value in fields.items()]
