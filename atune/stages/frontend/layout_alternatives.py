"""Layout alternatives as tilelang's objects, for `atune.layout`. Called inside kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any


def hold(make: Callable[[Any, int], Any] | None, buffers: Sequence[Any], threads: int) -> Any:
    """Annotate fragments with the layouts that `make` returns; without it each of `threads` holds them whole."""
    import tilelang.language as T
    from tilelang.layout import make_fully_replicated_layout_fragment

    make = make or make_fully_replicated_layout_fragment
    return T.annotate_layout({buffer: make(buffer, threads) for buffer in buffers})


def loop_layout(width: int, extents: Sequence[int], threads: int) -> Any:
    """Return the layout of a loop nest in which neighbouring threads take `width` neighbouring elements each.

    As many threads as divide the vectors of the last extent evenly work on it; the others take further rows, of all
    other extents together. Raises `ValueError` where that does not come out even: no element has two threads.
    """
    import tilelang.language as T

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

    return T.Fragment([*outer, columns], forward_fn=place)


def parallel(width: int | None, extents: Sequence[int], threads: int, coalesced_width: int) -> Any:
    """Return `T.Parallel` with a layout of `width`, or of the compiler's own choice."""
    import tilelang.language as T

    layout = None if width is None else loop_layout(width, extents, threads)
    return T.Parallel(*extents, loop_layout=layout, coalesced_width=_number(coalesced_width))


def policy(name: str) -> Any:
    """Return tilelang's warp policy of that name."""
    import tilelang.language as T

    return getattr(T.GemmWarpPolicy, name)


def copy(source: Any, target: Any, without_tma: bool, coalesced_width: int) -> Any:
    """Return `T.copy`."""
    import tilelang.language as T

    hints = {"disable_tma": True} if without_tma else None
    return T.copy(source, target, coalesced_width=coalesced_width or None, annotations=hints)


def swizzle(how: str, buffers: Sequence[Any]) -> Any:
    """Annotate shared buffers as turned by ``full``, ``half`` or ``quarter`` of the banks, or ``linear``."""
    import tilelang.language as T
    from tilelang import layout

    makers = {
        "linear": layout.make_linear_layout,
        "full": layout.make_full_bank_swizzled_layout,
        "half": layout.make_half_bank_swizzled_layout,
        "quarter": layout.make_quarter_bank_swizzled_layout,
    }
    return T.annotate_layout({buffer: makers[how](buffer) for buffer in buffers})


def _number(width: int) -> Any:
    """Return a width as tilelang's loops take it: an integer of tvm's."""
    from tilelang import tvm

    return tvm.tirx.IntImm("int32", width) if width else None
