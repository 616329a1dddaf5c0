"""Candidates that a run did not try, with reasons; and how often the guess that a candidate would lose was wrong."""

from __future__ import annotations

import msgspec

from atune.journal.events import CandidateMeasured, CandidatePruned
from atune.journal.state import State

ENDED = {
    "budget": "the budget ended the run before them",
    "until": "a further gain was unlikely",
    "stopped": "the run was stopped before them",
    "exhausted": "the strategy proposed no more",
}
"""Why candidates were not tried, by how a run finished."""


class Untried(msgspec.Struct, frozen=True):
    """Candidates that were not tried for one reason. `indices`: of proposed ones; others have no record."""

    reason: str
    count: int
    indices: tuple[int, ...] = ()


class Audited(msgspec.Struct, frozen=True):
    """Candidates that were `skipped` as likely to lose, and how many of these were `tried` all the same.

    `wrong`: those of them that were faster than every other candidate, so that skipping would lose the best. `near`:
    those within 5 % of the fastest of the others.
    """

    skipped: int
    tried: int
    wrong: int
    near: int


def untried(state: State) -> tuple[Untried, ...]:
    """Return the untried candidates by reason, the most frequent first."""
    by_reason: dict[str, list[int]] = {}
    why = "the run has not ended" if state.interrupted is None else "the run was interrupted before them"
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


def audited(state: State) -> Audited | None:
    """Return how good the guesses were; None if nothing was skipped."""
    if not state.skipped:
        return None
    codes = {state.first(index).index for index in state.skipped}
    outcomes = {code: state.outcome(code) for code in codes}
    tried = [o for o in outcomes.values() if o is not None and not isinstance(o, CandidatePruned)]
    others = [m.timing.latency_ms for m in state.ranked() if state.first(m.index).index not in codes]
    best = min(others, default=float("inf"))
    latencies = [o.timing.latency_ms for o in tried if isinstance(o, CandidateMeasured)]
    return Audited(
        len(codes), len(tried), sum(ms < best for ms in latencies), sum(ms <= 1.05 * best for ms in latencies)
    )
