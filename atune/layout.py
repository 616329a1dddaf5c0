"""Layouts as axes: alternatives that a space declares in a line, and what a kernel turns them into.

    from atune import layout

    atune.Space(threads=[128, 256], held=layout.fragments(), loop=layout.loops(1, 2, 4, 8))

    layout.hold(held, s, threads=threads)                       # in the kernel, where s is a fragment
    for i, j in layout.parallel(loop, rows, columns, threads=threads):

Values are texts and numbers, so that a journal holds them; `COMPILER` leaves a choice to tilelang, everywhere. An
alternative that does not suit a shape raises `ValueError` in the kernel: that candidate fails, with the reason.
tilelang is imported where a kernel calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import SpaceError
from atune.model.layouts import LayoutAxis

__all__ = [
    "COMPILER",
    "REPLICATED",
    "coalesced_widths",
    "fragments",
    "hold",
    "loop",
    "loops",
    "parallel",
    "width_of",
]


def __dir__() -> list[str]:
    return __all__


COMPILER = "compiler"
"""tilelang's own choice."""
REPLICATED = "replicated"
"""A fragment that every thread holds whole."""


def fragments(*own: str) -> tuple[str, ...]:
    """Return alternatives for `hold`: the compiler's own layout, all of the fragment in every thread, and your `own`.

    `own`: names, for which `hold` is given functions. Raises `SpaceError` for one that cannot be a keyword there.
    """
    for name in own:
        if not str(name).isidentifier() or name in (COMPILER, REPLICATED, "how", "threads") or own.count(name) > 1:
            raise SpaceError(
                f"layout.fragments: {name!r} is no name for a layout of your own; use such as layout.fragments('rows')"
            )
    return LayoutAxis((COMPILER, REPLICATED, *own))


def loops(*widths: int) -> tuple[str, ...]:
    """Return alternatives for `parallel`: the compiler's own, and threads side by side by `widths` elements each.

    Without `widths` these are 1, 2, 4 and 8. Raises `SpaceError` for one that is no power of two.
    """
    return LayoutAxis((COMPILER, *(f"vector{width}" for width in _widths("loops", widths))))


def coalesced_widths(*widths: int) -> tuple[int, ...]:
    """Return alternatives for `parallel` and `T.copy`: 0, which is the compiler's own, and `widths` elements.

    The same `widths` as for `loops`, and the same errors.
    """
    return LayoutAxis((0, *_widths("coalesced_widths", widths)))


def _widths(axis: str, widths: Sequence[int]) -> Sequence[int]:
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1 or width & (width - 1):
            raise SpaceError(
                f"layout.{axis}: width {width!r} is no power of two; use such as layout.{axis}(1, 2, 4, 8)"
            )
    return widths or (1, 2, 4, 8)


def hold(how: str, *buffers: Any, threads: int, **own: Callable[[Any, int], Any]) -> Any:
    """In a kernel: lay the fragments `buffers` out as `how` (of `fragments`) says. `threads`: those of the block.

    `own`: by name, functions of a buffer and `threads` that return its `T.Fragment`.
    """
    _check("hold", how, (COMPILER, REPLICATED, *own))
    return None if how == COMPILER else _makers().hold(own.get(how), buffers, threads)


def parallel(how: str, *extents: int, threads: int, coalesced_width: int = 0) -> Any:
    """In a kernel: `T.Parallel` over `extents`, laid out as `how` (of `loops`) says.

    Raises `ValueError` where a width does not divide the last extent, or the threads do not share the loop evenly.
    """
    return _makers().parallel(width_of(how), extents, threads, coalesced_width)


def loop(how: str, *extents: int, threads: int) -> Any:
    """In a kernel: the `T.Fragment` for a ``loop_layout=``, or None for the compiler's own. Raises as `parallel`."""
    width = width_of(how)
    return None if width is None else _makers().loop_layout(width, extents, threads)


def width_of(how: str) -> int | None:
    """Return the vector width, in elements, of a value of `loops`; None for the compiler's own.

    Raises ValueError for other values.
    """
    if how == COMPILER:
        return None
    digits = str(how).removeprefix("vector")
    if not digits.isdigit() or how == digits:
        raise ValueError(
            f"layout.parallel: {how!r} is no value of layout.loops(); use {COMPILER!r} or such as 'vector2'"
        )
    return int(digits)


def _check(where: str, how: Any, known: Sequence[str]) -> None:
    if how not in known:
        raise ValueError(f"layout.{where}: {how!r} is no alternative; use {', '.join(map(repr, known))}")


def _makers() -> Any:
    return importlib.import_module("atune.stages.frontend.layout_alternatives")
