"""What the best latency of a space may be, by estimates and by what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 8
"""Measured candidates below which nothing is expected."""
FITS = 0.5
"""Share of the variance of the log latencies that the estimates must explain; below it they tell too little."""


def expected_latency(known: Sequence[tuple[float, float]], estimate: float) -> float | None:
    """Return the latency, ms, that a candidate with this `estimate` is expected to have.

    `known`: estimate and latency of what was measured. The log latency is a line over the log estimate, by least
    squares, so that estimates may have any unit, and good ones are not taken at their word. None where too few are
    known, where the line does not fit, or where larger estimates mean smaller latencies.
    """
    points = [(math.log(one), math.log(ms)) for one, ms in known if 0 < one < math.inf and 0 < ms < math.inf]
    if len(points) < LEAST or not 0 < estimate < math.inf:
        return None
    x_mean = math.fsum(x for x, _ in points) / len(points)
    y_mean = math.fsum(y for _, y in points) / len(points)
    xx = math.fsum((x - x_mean) ** 2 for x, _ in points)
    yy = math.fsum((y - y_mean) ** 2 for _, y in points)
    xy = math.fsum((x - x_mean) * (y - y_mean) for x, y in points)
    if xx == 0 or yy == 0 or xy <= 0 or xy * xy < FITS * xx * yy:
        return None
    return math.exp(y_mean + xy / xx * (math.log(estimate) - x_mean))
