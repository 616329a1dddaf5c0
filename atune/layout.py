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
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import SpaceError
from atune.model.layouts import LayoutAxis

__all__ = [
    "COMPILER",
    "DANGEROUS",
    "POLICIES",
    "REPLICATED",
    "SAFE",
    "SWIZZLES",
    "WITHOUT_TMA",
    "coalesced_widths",
    "copies",
    "copy",
    "fragments",
    "hold",
    "loop",
    "loops",
    "parallel",
    "pass_configs",
    "policies",
    "policy",
    "swizzle",
    "swizzles",
    "width_of",
]


def __dir__() -> list[str]:
    return __all__


COMPILER = "compiler"
"""tilelang's own choice."""
REPLICATED = "replicated"
"""A fragment that every thread holds whole."""
WITHOUT_TMA = "no_tma"
POLICIES = ("Square", "FullRow", "FullCol")
"""How a gemm's warps share its output: tilelang's `GemmWarpPolicy`."""
SWIZZLES = (COMPILER, "linear", "full", "half", "quarter")
"""Of a shared buffer: by how many of the 32 banks a row is turned; ``linear``: by none."""
SAFE = {
    "tl.layout_cost_model": ("register-count", "io-aware"),
    "tl.ptxas_register_usage_level": tuple(range(11)),
    "tl.disable_warp_specialized": (False, True),
    "tl.disable_shared_memory_reuse": (False, True),
}
"""Pass configurations that change code and no results, with their values. The first is tilelang's default, but for the
register level, which has none. ``TILELANG_LAYOUT_COST_MODEL`` sets the cost model where a candidate does not."""
DANGEROUS = {
    "tl.disable_thread_storage_sync": "it leaves out barriers, so that threads race",
    "tl.disable_safe_memory_legalize": "it leaves out bounds checks, so that the kernel reads and writes outside",
    "tl.disable_tma_lower": "tilelang gives it up; use layout.copies(), for each copy",
}
"""Pass configurations that are no axes, and why."""


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
    """Return alternatives for `parallel` and `copy`: 0, which is the compiler's own, and `widths` elements.

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


def policies() -> tuple[str, ...]:
    """Return alternatives for `policy`, of a gemm. The first is tilelang's default."""
    return POLICIES


def copies() -> tuple[str, ...]:
    """Return alternatives for `copy`: the compiler's own, and without the tensor memory accelerator."""
    return (COMPILER, WITHOUT_TMA)


def swizzles() -> tuple[str, ...]:
    """Return alternatives for `swizzle`, of a shared buffer."""
    return SWIZZLES


def pass_configs(**chosen: Sequence[Any]) -> list[dict[str, Any] | None]:
    """Return the axis ``pass_configs``: every combination of the values chosen for names of `SAFE`.

    Names go without ``tl.``, such as ``layout_cost_model=["register-count", "io-aware"]``; None leaves a name out.
    Raises `SpaceError` for names of `DANGEROUS`, for others, and for values that a name does not have.
    """
    chosen = {name if "." in name else f"tl.{name}": values for name, values in chosen.items()}
    for name, values in chosen.items():
        _check_pass_config(name, values)
    points = itertools.product(*chosen.values())
    made = ({n: v for n, v in zip(chosen, point, strict=True) if v is not None} for point in points)
    return [config or None for config in made]


def _check_pass_config(name: str, values: Sequence[Any]) -> None:
    if name in DANGEROUS:
        raise SpaceError(f"layout.pass_configs: {name} is no axis: {DANGEROUS[name]}")
    if name not in SAFE:
        known = ", ".join(full.removeprefix("tl.") for full in SAFE)
        raise SpaceError(f"layout.pass_configs: {name} is not known to be safe; use {known}, or give dicts of your own")
    for value in values:
        if value is not None and value not in SAFE[name]:
            raise SpaceError(
                f"layout.pass_configs: {name} has no value {value!r}; use {', '.join(map(str, SAFE[name]))}"
            )


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


def policy(how: str) -> Any:
    """In a kernel: the ``policy=`` of a gemm for a value of `policies`."""
    _check("policy", how, POLICIES)
    return _makers().policy(how)


def copy(how: str, source: Any, target: Any, coalesced_width: int = 0) -> Any:
    """In a kernel: `T.copy`, done as `how` (of `copies`) says."""
    _check("copy", how, copies())
    return _makers().copy(source, target, how == WITHOUT_TMA, coalesced_width)


def swizzle(how: str, *buffers: Any) -> Any:
    """In a kernel: lay the shared `buffers` out as `how` (of `swizzles`) says."""
    _check("swizzle", how, SWIZZLES)
    return None if how == COMPILER else _makers().swizzle(how, buffers)


def _check(where: str, how: Any, known: Sequence[str]) -> None:
    if how not in known:
        raise ValueError(f"layout.{where}: {how!r} is no alternative; use {', '.join(map(repr, known))}")


def _makers() -> Any:
    return importlib.import_module("atune.stages.frontend.layout_alternatives")
