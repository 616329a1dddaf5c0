"""Layouts as axes: a space declares the alternatives in a line, and the kernel applies the chosen layout.

    from atune import layout

    atune.Space(threads=[128, 256], held=layout.fragments(), loop=layout.loops(1, 2, 4, 8))

    layout.hold(held, s, threads=threads)                       # in the kernel, where s is a fragment
    for i, j in layout.parallel(loop, rows, columns, threads=threads):

Values are texts and numbers, so a journal can store them; the value `COMPILER` of any axis leaves the choice to
tilelang. A layout that does not suit a shape raises `ValueError` in the kernel, and the candidate fails with this
reason. The module imports tilelang only when a kernel calls it.
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
"""The layout in which every thread holds the whole fragment."""


def fragments(*own: str) -> tuple[str, ...]:
    """Return alternatives for `hold`: the compiler's layout, the whole fragment in every thread, and your own layouts.

    `own`: names of your layouts, whose functions the kernel passes to `hold` as keywords. Raises `SpaceError` for a
    name that cannot be such a keyword.
    """
    for name in own:
        if not str(name).isidentifier() or name in (COMPILER, REPLICATED, "how", "threads") or own.count(name) > 1:
            raise SpaceError(
                f"layout.fragments: {name!r} cannot name a layout of yours; use a name such as layout.fragments('rows')"
            )
    return LayoutAxis((COMPILER, REPLICATED, *own))


def loops(*widths: int) -> tuple[str, ...]:
    """Return alternatives for `parallel`: the compiler's layout, and a layout for each of `widths`.

    Widths count a thread's neighbouring elements. The default is 1, 2, 4, 8. Raises `SpaceError` if not powers of two.
    """
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1 or width & (width - 1):
            raise SpaceError(f"layout.loops: width {width!r} is not a power of two; use, say, layout.loops(1, 2, 4, 8)")
    return LayoutAxis((COMPILER, *(f"vector{width}" for width in widths or (1, 2, 4, 8))))


def hold(how: str, *buffers: Any, threads: int, **own: Callable[[Any, int], Any]) -> Any:
    """Lay out the fragments `buffers` in a kernel. `how`: the layout, which is a value of `fragments`.

    `threads`: threads per block. `own`: your layouts by name, each a function that takes a buffer and `threads` and
    returns the buffer's `T.Fragment`. Raises `ValueError` for an unknown `how`.
    """
    if how not in (known := (COMPILER, REPLICATED, *own)):
        raise ValueError(f"layout.hold: unknown layout {how!r}; use {', '.join(map(repr, known))}")
    if how == COMPILER:
        return None
    make = own.get(how) or _tilelang().layout.make_fully_replicated_layout_fragment
    return _tilelang().language.annotate_layout({buffer: make(buffer, threads) for buffer in buffers})


def parallel(how: str, *extents: int, threads: int, coalesced_width: int = 0) -> Any:
    """Return `T.Parallel` over `extents` for a loop of a kernel. `how`: the loop's layout, which is a value of `loops`.

    Raises `ValueError` if a width does not divide the last extent, or the threads do not share the loop evenly.
    """
    if coalesced_width & (coalesced_width - 1):  # tilelang would round it down
        raise ValueError(f"layout.parallel: coalesced_width {coalesced_width} is not a power of two: give 1, 2, 4 or 8")
    layout = loop(how, *extents, threads=threads)
    width = _tilelang().tvm.tirx.IntImm("int32", coalesced_width) if coalesced_width else None
    return _tilelang().language.Parallel(*extents, loop_layout=layout, coalesced_width=width)


def loop(how: str, *extents: int, threads: int) -> Any:
    """Return the `T.Fragment` for a ``loop_layout=`` in a kernel, or None for the compiler's. Raises as `parallel`.

    Each thread takes vectors of neighbouring elements, whose length `how` gives. A row has the last extent; the other
    extents count the rows. A row's vectors go to as many threads as share them evenly; other threads take other rows.
    """
    if how == COMPILER:
        return None
    if (vector := re.fullmatch(r"vector(\d+)", str(how))) is None:
        raise ValueError(f"layout.loop: {how!r} is not a value of layout.loops(); use {COMPILER!r} or, say, 'vector2'")
    width = int(vector[1])
    *outer, columns = map(int, extents)
    rows, vectors = math.prod(outer), columns // width
    if columns % width:
        raise ValueError(f"layout: vectors of {width} do not divide the loop's last extent, {columns}")
    side = math.gcd(vectors, threads)
    groups = threads // side
    if rows % groups:
        raise ValueError(f"layout: {threads} threads cannot evenly share {rows} rows of {vectors} vectors of {width}")

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
