"""When a compile is hopeless: a deadline that follows what the others of the run took."""

from __future__ import annotations

import math
from collections.abc import Sequence

from atune.engine.compile_work import WORK, accumulators
from atune.journal.state import State
from atune.model.artifact import Lowered

LEAST = 8
"""Libraries that must have been compiled before anything is called hopeless."""
QUANTILE = 0.95
FACTOR = 10.0
"""How many times longer than that quantile of the others a compile may take."""
FLOOR_S = 10.0
"""No compile is given less: the machine may be busy for so long."""


def compile_deadline_s(state: State, group: Sequence[Lowered], most_s: float) -> float | None:
    """Return the seconds that compiling `group` may take; None where the user's `most_s` decides.

    A pure function of the events so far: the seconds a candidate of each library that was compiled. A group may take
    as much for each member, and one with many accumulators as many times more as such compiles do.
    """
    seen = state.compile_s
    if len(seen) < LEAST or any(state.first(one.index).built for one in group):
        return None  # one that an earlier part of the run compiled is not hopeless
    usual_s = seen[math.ceil(QUANTILE * len(seen)) - 1]
    limit_s = max(FLOOR_S, FACTOR * usual_s * sum(map(_weight, group)))
    return round(limit_s, 1) if limit_s < most_s else None


def _weight(lowered: Lowered) -> float:
    return next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)
