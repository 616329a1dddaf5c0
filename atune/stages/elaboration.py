"""Kernel function → PrimFunc, for workers and for the caller's own process alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atune.candidate import RESERVED, thaw

DYNAMIC = "$dynamic"
"""The one key of a dict that stands for a symbolic variable among a problem's arguments: ``{"$dynamic": "m"}``."""


def elaborate(kernel: Any, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Call `kernel`, plain or under `@tilelang.jit`, and return its PrimFunc.

    `arguments` are the problem's, `config` a configuration; its reserved names are left out. Raises what the kernel or
    tilelang raises, and `TypeError` for a kernel that returns something else.
    """
    from tilelang import tvm

    given = {name: value for name, value in config.items() if name not in RESERVED}
    symbols: dict[str, Any] = {}
    values = {name: _value(value, symbols) for name, value in {**thaw(arguments), **thaw(given)}.items()}
    get_tir = getattr(kernel, "get_tir", None)
    function = get_tir(**values) if get_tir is not None else kernel(**values)
    if not isinstance(function, tvm.tirx.PrimFunc):
        raise TypeError(f"the kernel returned a {type(function).__name__}, and must return a PrimFunc (T.prim_func)")
    return function


def _value(value: Any, symbols: dict[str, Any]) -> Any:
    """Return the symbolic variable that `value` stands for, one for each name, or `value`."""
    if not isinstance(value, dict) or value.keys() != {DYNAMIC}:
        return value
    name = value[DYNAMIC]
    if name not in symbols:
        import tilelang.language as T

        symbols[name] = T.dynamic(name)
    return symbols[name]
