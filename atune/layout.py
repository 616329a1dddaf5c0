"""Layouts as axes of a space: the space lists the layouts to try, and the kernel applies the layout that it gets.

    from atune import layout

    atune.Space(threads=[128, 256], held=layout.fragments(), loop=layout.loops(1, 2, 4, 8))

    layout.hold(held, s, threads=threads)                       # in the kernel, where s is a fragment
    for i, j in layout.parallel(loop, rows, columns, threads=threads):

The values of these axes are strings, so a journal can store them. With the value `COMPILER`, tilelang chooses the
layout. If a layout does not suit a shape, the kernel raises `ValueError`, and the candidate fails with this message.
This module imports tilelang only when a kernel calls one of its functions.
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
"""The name of the layout in which every thread holds the whole fragment."""


def fragments(*own: str) -> tuple[str, ...]:
    """Return an axis with layouts for `hold`: the compiler's layout, the whole fragment in every thread, and `own`.

    `own`: names of your own layouts. The kernel passes the function of each layout to `hold` as a keyword argument.
    Raises `SpaceError` if a name cannot be used as a keyword argument.
    """
    for name in own:
        if not str(name).isidentifier() or name in (COMPILER, REPLICATED, "how", "threads") or own.count(name) > 1:
            raise SpaceError(
                f"layout.fragments: {name!r} cannot be a layout's name; use a name such as layout.fragments('rows')"
            )
    return LayoutAxis((COMPILER, REPLICATED, *own))


def loops(*widths: int) -> tuple[str, ...]:
    """Return an axis for `parallel`: the compiler's layout, and a layout for each width. The default is 1, 2, 4 and 8.

    A width is a number of neighbouring elements per thread. Raises `SpaceError` if a width is not a power of 2.
    """
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1 or width & (width - 1):
            raise SpaceError(f"layout.loops: width {width!r} is not a power of two; use, say, layout.loops(1, 2, 4, 8)")
    return LayoutAxis((COMPILER, *(f"vector{width}" for width in widths or (1, 2, 4, 8))))


def hold(how: str, *buffers: Any, threads: int, **own: Callable[[Any, int], Any]) -> Any:
    """Set the layout of the fragments `buffers` in a kernel. `how`: the layout, as named by `fragments`.

    `threads`: threads per block. `own`: the function of each of your layouts, as a keyword with the layout's name. The
    function takes a buffer and `threads`, and returns the buffer's `T.Fragment`. Raises `ValueError` for unknown `how`.
    """
    if how not in (known := (COMPILER, REPLICATED, *own)):
        raise ValueError(f"layout.hold: unknown layout {how!r}; use {', '.join(map(repr, known))}")
    if how == COMPILER:
        return None
    make = own.get(how) or _tilelang().layout.make_fully_replicated_layout_fragment
    return _tilelang().language.annotate_layout({buffer: make(buffer, threads) for buffer in buffers})


def parallel(how: str, *extents: int, threads: int, coalesced_width: int = 0) -> Any:
    """Return `T.Parallel` over `extents` for a loop of a kernel. `how`: the layout of the loop, as named by `loops`.

    Raises `ValueError` if the width does not divide the last extent, or if the threads cannot evenly share the loop.
    """
    if coalesced_width & (coalesced_width - 1):  # tilelang would round it down
        raise ValueError(f"layout.parallel: coalesced_width {coalesced_width} is not a power of two: give 1, 2, 4 or 8")
    layout = loop(how, *extents, threads=threads)
    width = _tilelang().tvm.tirx.IntImm("int32", coalesced_width) if coalesced_width else None
    return _tilelang().language.Parallel(*extents, loop_layout=layout, coalesced_width=width)


def loop(how: str, *extents: int, threads: int) -> Any:
    """Return the `T.Fragment` to pass as ``loop_layout=`` in a kernel, or None if the compiler chooses the layout.

    The last extent is the length of a row, and the product of the other extents is the number of rows. `how` gives the
    width of the vectors into which a row is divided. As many threads as possible evenly share the vectors of a row, and
    all other threads take other rows. Raises `ValueError` in the same cases as `parallel`.
    """
    if how == COMPILER:
        return None
    if (vector := re.fullmatch(r"vector(\d+)", str(how))) is None:
        raise ValueError(f"layout.loop: {how!r} is not a value of layout.loops(); use {COMPILER!r} or, say, 'vector2'")
    width = int(vector[1])
    *outer, columns = map(int, extents)
    rows, vectors = math.prod(outer), columns // width
    if columns % width:
        raise ValueError(f"layout: vectors of {width} elements do not divide the loop's last extent, {columns}")
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
