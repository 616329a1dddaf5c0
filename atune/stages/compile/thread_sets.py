"""Which threads do an iteration of a loop: a layout's expression, evaluated for a few iterations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.model.layouts import written_threads

Evaluate = Callable[[Mapping[Any, int]], int]
MOST_THREADS = 1024
"""Threads of an iteration that are looked at: a block has no more."""
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
}


def threads_of(layout: Any, extents: Sequence[int], replication: int) -> tuple[str, ...]:
    """Return the threads that do the first, the last and each 2^n-th iteration; empty where that is not understood."""
    from tilelang import tvm

    if replication > MOST_THREADS:
        return ()
    try:
        thread = _evaluator(layout.thread)
    except ValueError:
        return ()
    placed = list(layout.get_forward_vars())[-len(extents) :]
    copies = [one for one in tvm.tirx.analysis.undefined_vars(layout.thread) if not any(map(one.same_as, placed))]
    if len(copies) > 1:
        return ()
    found = []
    for place in _places(extents):
        here = dict(zip(placed, place, strict=True))
        of_copies = ({**here, **dict.fromkeys(copies, copy)} for copy in range(replication))
        found.append(written_threads(map(thread, of_copies)))
    return tuple(found) if all(found) else ()


def _places(extents: Sequence[int]) -> list[tuple[int, ...]]:
    total = math.prod(extents)
    numbers = sorted({0, total - 1, *(1 << bit for bit in range((total - 1).bit_length()))})
    places = []
    for number in numbers:
        place = []
        for extent in reversed(extents):
            number, index = divmod(number, extent)
            place.append(index)
        places.append(tuple(reversed(place)))
    return places


def _evaluator(expression: Any) -> Evaluate:
    """Return a function from variables' values to an integer expression's. Raises `ValueError` for other nodes."""
    kind = type(expression).__name__
    if kind == "IntImm":
        value = int(expression.value)
        return lambda values: value
    if kind == "Var":
        return lambda values: values[expression]
    if kind == "Cast":
        return _evaluator(expression.value)
    if kind in _OPERATORS:
        call, one, other = _OPERATORS[kind], _evaluator(expression.a), _evaluator(expression.b)
        return lambda values: call(one(values), other(values))
    raise ValueError(f"no integer expression of indices: {kind}")
