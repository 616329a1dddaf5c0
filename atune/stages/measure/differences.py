"""Figures of a difference, for messages: digits that tell two numbers apart, and the tolerance that would do."""

from __future__ import annotations

import math
from typing import Any

MOST_RTOL = 0.5
"""A tolerance above this is no advice: the outputs are plainly others."""


def apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers as text, with as many digits, six at least, as tell them apart."""
    if isinstance(one, int) and isinstance(other, int):
        return str(int(one)), str(int(other))
    digits = 6
    while digits < 17 and one != other and f"{one:.{digits}g}" == f"{other:.{digits}g}":
        digits += 1
    return f"{one:.{digits}g}", f"{other:.{digits}g}"


def passing_rtol(difference: Any, want: Any, scale: float, atol: float | None, most: int) -> str:
    """Return the least rtol with which no more than `most` elements are wrong, as text; empty where that is no advice.

    `difference`, `want`: tensors of the absolute difference and the reference. `scale`: what rtol is multiplied with to
    make the absolute tolerance; `atol`: that tolerance where it was given, None where it follows rtol.
    """
    import torch

    above, size = (difference, scale + want.abs()) if atol is None else ((difference - atol).clamp(min=0), want.abs())
    needed = (above / size).masked_fill(above == 0, 0.0).flatten().nan_to_num(nan=math.inf, posinf=math.inf)
    least = torch.kthvalue(needed, needed.numel() - most).values.item() if most < needed.numel() else 0.0
    return _upwards(least) if 0 < least <= MOST_RTOL else ""


def _upwards(value: float) -> str:
    """Return a number above zero with two digits, rounded up."""
    digits = 1 - math.floor(math.log10(value))
    return f"{math.ceil(value * (1 + 1e-6) * 10.0**digits) / 10.0**digits:.2g}"
