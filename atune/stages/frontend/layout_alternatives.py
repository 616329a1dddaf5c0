"""Layout alternatives as tilelang's objects, for `atune.layout`. Called inside kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from atune.stages import tilelang


def hold(make: Callable[[Any, int], Any] | None, buffers: Sequence[Any], threads: int) -> Any:
    """Annotate fragments with the layouts that `make` returns; without it each of `threads` holds them whole."""
    make = make or tilelang.layout.make_fully_replicated_layout_fragment
    return tilelang.language.annotate_layout({buffer: make(buffer, threads) for buffer in buffers})


def loop_layout(width: int, extents: Sequence[int], threads: int) -> Any:
    """Return the layout of a loop nest in which neighbouring threads take `width` neighbouring elements each.

    As many threads as divide the vectors of the last extent evenly work on it; the others take further rows, of all
    other extents together. Raises `ValueError` where that does not come out even: no element has two threads.
    """
    *outer, columns = (int(extent) for extent in extents)
    rows, vectors = math.prod(outer), columns // width
    if columns % width:
        raise ValueError(f"layout: vectors of {width} do not divide the loop's last extent, {columns}")
    side = math.gcd(vectors, threads)
    groups = threads // side
    if rows % groups:
        raise ValueError(f"layout: {threads} threads do not share {rows} rows of {vectors} vectors of {width} evenly")

    def place(*indices: Any) -> tuple[Any, Any]:
        row: Any = 0
        for index, size in zip(indices, outer, strict=False):
            row = row * size + index
        column = indices[-1]
        slot = row // groups * (vectors // side) + column // (width * side)
        return row % groups * side + column // width % side, slot * width + column % width

    return tilelang.language.Fragment([*outer, columns], forward_fn=place)


def parallel(width: int | None, extents: Sequence[int], threads: int, coalesced_width: int) -> Any:
    """Return `T.Parallel` with a layout of `width`, or of the compiler's own choice."""
    layout = None if width is None else loop_layout(width, extents, threads)
    return tilelang.language.Parallel(*extents, loop_layout=layout, coalesced_width=_number(coalesced_width))


def _number(width: int) -> Any:
    """Return a width as tilelang's loops take it: an integer of tvm's."""
    return tilelang.tvm.tirx.IntImm("int32", width) if width else None
