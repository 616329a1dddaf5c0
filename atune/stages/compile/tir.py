"""Reading TVM's TIR: parts of an expression, regions and sizes of buffers, and values over the blocks of a grid.

A value is an int where all blocks have the same, else an array with one for each block. Of a large grid, and of loops,
the arrays are samples.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from atune.stages import tilelang


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
    kind = tilelang.tvm.DataType(text_of(dtype))
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


MOST_BLOCKS = 4096
"""The average is over all blocks of a grid up to this size, and over evenly spaced ones of a larger grid."""
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
    "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip


def combined(kind: str, a: Any, b: Any) -> Any:
    """Return the value of the operation `kind`, a name of TIR's, on two values; None for a division by zero."""
    if kind in ("FloorDiv", "FloorMod") and isinstance(b, int) and b == 0:
        return None
    if kind in BINARY:
        return _plain(BINARY[kind](a, b))
    import numpy as np

    chosen = {"Min": np.minimum, "Max": np.maximum, "And": np.logical_and, "Or": np.logical_or}[kind]
    return _plain(chosen(a, b))


def _plain(value: Any) -> Any:
    """Return numbers as ints, and arrays of booleans as arrays of ints."""
    if getattr(value, "ndim", 0):
        return value.astype("int64")
    return int(value)


def values_of(grid: Mapping[Any, int]) -> dict[Any, Any]:
    """Return each grid variable's values over the blocks, or over evenly spaced ones of a large grid."""
    import numpy as np

    whole = math.prod(grid.values()) <= MOST_BLOCKS
    most = MOST_BLOCKS if whole else int(MOST_BLOCKS ** (1 / len(grid)))
    points = [
        np.arange(extent) if extent <= most else np.linspace(0, extent - 1, most).round().astype("int64")
        for extent in grid.values()
    ]
    planes = [axis.ravel() for axis in np.meshgrid(*points, indexing="ij")]
    again = max(1, MOST_BLOCKS // len(planes[0]))  # so that a sample of loops has enough points
    return dict(zip(grid, (np.repeat(plane, again) for plane in planes), strict=True))


def sampled(extent: Any, number: int, points: int) -> Any:
    """Return values of a loop's variable, spread evenly over its extent. They differ for another `number`."""
    import numpy as np

    step = math.sqrt(PRIMES[number % len(PRIMES)])  # irrational, so that no value is missed
    spread = (np.arange(points) + 0.5) * step % 1.0
    return np.floor(spread * np.maximum(extent, 0)).astype("int64")


def at_least_none(extent: Any) -> Any:
    """Return `extent`, with 0 in place of what is negative: a loop that does not run."""
    return max(extent, 0) if isinstance(extent, int) else extent.clip(min=0)


def mean(times: Any) -> float:
    """Return the average over the blocks."""
    return float(times if isinstance(times, int) else times.mean())
