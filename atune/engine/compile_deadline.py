"""The deadline of a compile, derived from how long the run's other compiles took."""

from __future__ import annotations

import math
from collections.abc import Sequence

from atune.engine.compile_work import WORK, accumulators
from atune.journal.state import State
from atune.model.artifact import Lowered

LEAST = 8
"""Number of libraries that must have been compiled before a compile can be hopeless."""
QUANTILE = 0.95
FACTOR = 10.0
"""A compile may take this many times the quantile of the others' times."""
FLOOR_S = 10.0
"""The shortest deadline, because a busy machine may delay any compile by this long."""


def compile_deadline_s(state: State, group: Sequence[Lowered], most_s: float) -> float | None:
    """Return the seconds that compiling `group` may take; None if the user's limit `most_s` applies.

    A pure function of the events so far, namely of the seconds for each candidate in each compiled library. The limit
    grows with the number of members. Many accumulators multiply it by the factor that such compiles take longer.
    """
    seen = state.compile_s
    if len(seen) < LEAST or any(state.first(one.index).built for one in group):
        return None  # an earlier part of the run compiled one, so it is not hopeless
    usual_s = seen[math.ceil(QUANTILE * len(seen)) - 1]
    limit_s = max(FLOOR_S, FACTOR * usual_s * sum(map(_weight, group)))
    return round(limit_s, 1) if limit_s < most_s else None


def _weight(lowered: Lowered) -> float:
    return next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)
