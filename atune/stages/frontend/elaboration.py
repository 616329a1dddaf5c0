"""Kernel function → PrimFunc, for workers and for the caller's own process alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atune.errors import SpaceError, UsageError
from atune.model.candidate import RESERVED, normalise, thaw

DYNAMIC, DTYPE, TORCH_DTYPE = "$dynamic", "$dtype", "$torch.dtype"
"""Keys of one-entry dicts that encode special arguments of a problem as data. They are symbolic variables
(``{"$dynamic": "m"}``), tilelang's dtypes and torch's dtypes."""


def elaborate(kernel: Any, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Call `kernel`, plain or under `@tilelang.jit`, and return its PrimFunc.

    `arguments` are the problem's, `config` a configuration; its reserved names are omitted. Raises what the kernel or
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


def dimension(value: Any) -> int | str:
    """Return a dimension as a number, or as text if it is symbolic."""
    text = "".join(str(value))  # tvm's printer gives a string type of its own, which is not encoded as one
    return int(text) if text.lstrip("-").isdigit() else text


def encode(value: Any, where: str) -> Any:
    """Return `value` as data, which `elaborate` turns back. Raises `UsageError`, naming `where`, for what is none."""
    import torch
    from tilelang import tvm

    if isinstance(value, tvm.tirx.Var):
        return {DYNAMIC: str(value.name)}
    if isinstance(value, tvm.DataType):
        return {DTYPE: str(value)}
    if isinstance(value, torch.dtype):
        return {TORCH_DTYPE: str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return tuple(encode(v, where) for v in value)
    try:
        return normalise(value, where)
    except SpaceError as error:
        if isinstance(value, (int, float, str)):  # the kind is right, and the error says what is not
            raise
        raise UsageError(
            f"{where} is a {type(value).__name__}; a problem's arguments must be None, bool, int, float, str, a dtype, "
            "a symbolic variable, or lists, tuples and dicts of these: put other things in the kernel's closure"
        ) from error


def _value(value: Any, symbols: dict[str, Any]) -> Any:
    """Undo `encode`; one name is one symbolic variable."""
    if isinstance(value, tuple):
        return tuple(_value(v, symbols) for v in value)
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(tag, name)] = value.items()
    if tag == DYNAMIC:
        if name not in symbols:
            import tilelang.language as T

            symbols[name] = T.dynamic(name)
        return symbols[name]
    if tag == DTYPE:
        from tilelang import tvm

        return tvm.DataType(name)
    if tag == TORCH_DTYPE:
        import torch

        return getattr(torch, name)
    return value
