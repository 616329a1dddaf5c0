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
import math
import re
from collections.abc import Callable
from typing import Any

from atune.errors import SpaceError
from atune.model.layouts import COMPILER, LayoutAxis

__all__ = ["COMPILER", "fragments", "hold", "loop", "loops", "parallel"]


def __dir__() -> list[str]:
    return __all__


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
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1 or width & (width - 1):
            raise SpaceError(f"layout.loops: width {width!r} is no power of two; use such as layout.loops(1, 2, 4, 8)")
    return LayoutAxis((COMPILER, *(f"vector{width}" for width in widths or (1, 2, 4, 8))))


def hold(how: str, *buffers: Any, threads: int, **own: Callable[[Any, int], Any]) -> Any:
    """In a kernel: lay the fragments `buffers` out as `how` (of `fragments`) says. `threads`: those of the block.

    `own`: by name, functions of a buffer and `threads` that return its `T.Fragment`. Raises `ValueError` for another
    `how`.
    """
    if how not in (known := (COMPILER, REPLICATED, *own)):
        raise ValueError(f"layout.hold: {how!r} is no alternative; use {', '.join(map(repr, known))}")
    if how == COMPILER:
        return None
    make = own.get(how) or _tilelang().layout.make_fully_replicated_layout_fragment
    return _tilelang().language.annotate_layout({buffer: make(buffer, threads) for buffer in buffers})


def parallel(how: str, *extents: int, threads: int, coalesced_width: int = 0) -> Any:
    """In a kernel: `T.Parallel` over `extents`, laid out as `how` (of `loops`) says.

    Raises `ValueError` where a width does not divide the last extent, or the threads do not share the loop evenly.
    """
    if coalesced_width & (coalesced_width - 1):  # tilelang would take the next smaller one
        raise ValueError(f"layout.parallel: coalesced_width {coalesced_width} is no power of two: give 1, 2, 4 or 8")
    layout = loop(how, *extents, threads=threads)
    width = _tilelang().tvm.tirx.IntImm("int32", coalesced_width) if coalesced_width else None
    return _tilelang().language.Parallel(*extents, loop_layout=layout, coalesced_width=width)


def loop(how: str, *extents: int, threads: int) -> Any:
    """In a kernel: the `T.Fragment` for a ``loop_layout=``, or None for the compiler's own. Raises as `parallel`.

    Neighbouring threads take as many neighbouring elements each as `how` says. As many threads as divide the vectors of
    the last extent evenly work on it; the others take further rows, of all other extents together.
    """
    if how == COMPILER:
        return None
    if (found := re.fullmatch(r"vector(\d+)", str(how))) is None:
        raise ValueError(f"layout.loop: {how!r} is no value of layout.loops(); use {COMPILER!r} or such as 'vector2'")
    width = int(found[1])
    *outer, columns = map(int, extents)
    rows, vectors = math.prod(outer), columns // width
    if columns % width:
        raise ValueError(f"layout: vectors of {width} do not divide the loop's last extent, {columns}")
    side = math.gcd(vectors, threads)
    groups = threads // side
    if rows % groups:
        raise ValueError(f"layout: {threads} threads do not share {rows} rows of {vectors} vectors of {width} evenly")

    def place(*indices: Any) -> Any:
        row: Any = 0
        for index, size in zip(indices, outer, strict=False):
            row = row * size + index
        column = indices[-1]
        slot = row // groups * (vectors // side) + column // (width * side)
        return row % groups * side + column // width % side, slot * width + column % width

    return _tilelang().language.Fragment([*outer, columns], forward_fn=place)


def _tilelang() -> Any:
    return importlib.import_module("atune.stages.tilelang")
