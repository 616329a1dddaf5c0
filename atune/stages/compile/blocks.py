"""Values over the blocks of a grid: an int where all have the same, else an array with one for each block.

Of a large grid, and of loops, the arrays are samples.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

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
