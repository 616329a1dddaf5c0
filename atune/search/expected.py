"""Predicts a candidate's latency from the prior's estimates and the measurements so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 8
"""With fewer measured candidates, nothing is predicted."""
FITS = 0.5
"""Share of the log latencies' variance that the estimates must explain; below it, nothing is predicted."""


def expected_latency(known: Sequence[tuple[float, float]], estimate: float) -> float | None:
    """Return the latency, ms, predicted for a candidate with this `estimate`.

    `known`: estimates and latencies of measured candidates. A least-squares line predicts the log latency from the log
    estimate, so that estimates may have any unit. Returns None if too few are known, if the line fits badly, or if it
    falls.
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
