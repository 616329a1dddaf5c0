"""The deadline of a compile, derived from how long the run's other compiles took."""

from __future__ import annotations

import math
from collections.abc import Sequence

from atune.engine.compile_work import WORK, accumulators
from atune.journal.state import State
from atune.model.artifact import Lowered

LEAST = 8
"""Number of candidates that must have been compiled before a compile can be hopeless."""
QUANTILE = 0.9
FACTOR = 5.0
"""A compile may take this many times the quantile of the others' times."""
FLOOR_S = 10.0
"""The shortest deadline, because a busy machine may delay any compile by this long."""
HOPELESS = "hopeless: compiling ran past "
"""The message of a compile that was ended before the user's deadline begins so. An audit may compile it anyway."""


def hopeless(limit_s: float) -> str:
    """Return why a compile was ended before the user's deadline."""
    return f"{HOPELESS}{limit_s:g} s, far longer than the others' compiles took"


def compile_deadline_s(state: State, group: Sequence[Lowered], most_s: float) -> float | None:
    """Return the seconds that compiling `group` may take; None if the user's limit `most_s` applies.

    A pure function of the events so far, namely of each compiled candidate's share of its library's seconds. The limit
    grows with the number of members. Many accumulators multiply it by the factor that such compiles take longer.

    The space's default configuration has the user's limit, because every result is compared with it. In a group it has
    that of the group, whose parts are then compiled again.
    """
    seen = state.compile_s
    if len(seen) < LEAST or any(state.first(one.index).built for one in group):
        return None  # an earlier part of the run compiled one, so it is not hopeless
    if len(group) == 1 and _is_default(state, group[0].index):
        return None
    usual_s = seen[math.ceil(QUANTILE * len(seen)) - 1]
    limit_s = max(FLOOR_S, FACTOR * usual_s * sum(map(_weight, group)))
    return round(limit_s, 1) if limit_s < most_s else None


def _is_default(state: State, index: int) -> bool:
    """Tell whether a candidate is the space's default configuration, or the one that has its code."""
    default = state.header.default if state.header is not None else None
    return default is not None and state.first(default).index == state.first(index).index


def _weight(lowered: Lowered) -> float:
    return next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)
