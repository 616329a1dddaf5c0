"""How far apart two problems are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def is_size(value: Any) -> bool:
    """Tell whether a problem's argument has a logarithm: a number above zero, and no flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the sum of the log2 ratios of two problems' sizes. Each other difference counts as one.

    Rounded, so that machines whose logarithms differ in their last digit find the same ties.
    """
    return round(math.fsum(_apart(one.get(name), other.get(name)) for name in {**one, **other}), 9)


def _apart(one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    return abs(math.log2(one / other)) if is_size(one) and is_size(other) else 1.0
