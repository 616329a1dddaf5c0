"""Reading TVM's TIR: the parts of an expression, the region of a tensor, and the size of a buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


class Unknown(Exception):
    """Some of the kernel's work depends on values of a call, or cannot be known."""


def region(node: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the buffer, the extents and the indices of a part of a tensor."""
    kind = type(node).__name__
    if name_of(node) == "tl.region":
        load, _, *extents = node.args
        return load.buffer, tuple(extents), load.indices
    if kind == "BufferRegion":
        return node.buffer, tuple(r.extent for r in node.region), tuple(r.min for r in node.region)
    raise Unknown(f"a region as {kind}")


def name_of(node: Any) -> str:
    """Return the name of the operation that an expression calls; empty for other expressions."""
    return str(getattr(node.op, "name", node.op)) if type(node).__name__ == "Call" else ""


def elements_of(extents: Any) -> int:
    """Return the product of `extents`. Raises `Unknown` if one depends on the call."""
    if not all(type(extent).__name__ in ("IntImm", "int") for extent in extents):
        raise Unknown(f"a shape of {extents}")
    return math.prod(int(extent) for extent in extents)


def size_of(buffer: Any) -> int:
    """Return the bytes of a buffer. Raises `Unknown` if its shape depends on the call."""
    return elements_of(buffer.shape) * bits_of(buffer.dtype) // 8


def bits_of(dtype: Any) -> int:
    """Return the bits of an element, all lanes together."""
    from tilelang import tvm

    kind = tvm.DataType(text_of(dtype))
    return int(kind.bits) * int(kind.lanes)


def text_of(value: Any) -> str:
    """Return the text of a TVM string, of a constant, or of a dtype."""
    inner = getattr(value, "value", value)
    return "".join(str(inner))


def parts_of(node: Any) -> Iterator[Any]:
    """Yield the operands of an expression."""
    if type(node).__name__ == "Call":
        yield from (argument for argument in node.args if hasattr(argument, "dtype"))
        return
    for name in ("a", "b", "value", "condition", "true_value", "false_value"):
        part = getattr(node, name, None)
        if hasattr(part, "dtype"):
            yield part


def variables_of(node: Any) -> Iterator[Any]:
    """Yield the variables of an expression, in the indices of its loads too."""
    if type(node).__name__ in ("Var", "SizeVar"):
        yield node
    elif type(node).__name__ == "BufferLoad":
        for index in node.indices:
            yield from variables_of(index)
    else:
        for part in parts_of(node):
            yield from variables_of(part)
