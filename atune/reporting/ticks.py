"""Round values for the axes of plots: 1, 2 or 5 times a power of ten."""

from __future__ import annotations

import math

MOST = 8
"""Ticks of a logarithmic axis."""


def linear_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round values from `low` to `high`, equally far apart; about `wanted` of them."""
    if not (high > low and math.isfinite(high - low)):
        return [low]
    raw = (high - low) / wanted
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(k * base for k in (1, 2, 5, 10) if k * base >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high`, which are above zero, for a logarithmic axis; `MOST` at most."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [float(f"{k * 10.0**e:.6g}") for e in powers for k in steps]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) <= MOST:
            break
    if len(found) > MOST:
        found = found[:: -(-len(found) // MOST)]
    return found if len(found) > 1 else linear_ticks(low, high, 4)
