"""Candidates that a run did not try, with reasons."""

from __future__ import annotations

import msgspec

from atune.journal.events import CandidatePruned
from atune.journal.state import State

ENDED = {
    "budget": "the budget ended the run before them",
    "stopped": "the run was stopped before them",
    "exhausted": "the strategy proposed no more",
}
"""Why candidates were not tried, by how a run finished."""


class Untried(msgspec.Struct, frozen=True):
    """Candidates that were not tried for one reason. `indices`: of proposed ones; others have no record."""

    reason: str
    count: int
    indices: tuple[int, ...] = ()


def untried(state: State) -> tuple[Untried, ...]:
    """Return the untried candidates by reason, the most frequent first."""
    by_reason: dict[str, list[int]] = {}
    why = "the run has not ended" if state.interrupted is None else "the run was cut short before them"
    if state.finished is not None:
        why = ENDED.get(state.finished.reason, state.finished.reason)
    for entry in state.entries.values():
        outcome = state.outcome(entry.index)
        if isinstance(outcome, CandidatePruned):
            by_reason.setdefault(outcome.reason, []).append(entry.index)
        elif outcome is None and entry.key:
            by_reason.setdefault(why, []).append(entry.index)
    found = {reason: Untried(reason, len(indices), tuple(indices)) for reason, indices in by_reason.items()}
    rest = max(0, state.total - sum(bool(entry.key) for entry in state.entries.values()))
    if rest:
        there = found.get(why, Untried(why, 0))
        found[why] = Untried(why, there.count + rest, there.indices)
    return tuple(sorted(found.values(), key=lambda one: (-one.count, one.reason)))
