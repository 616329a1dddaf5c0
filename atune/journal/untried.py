"""Candidates that a run did not try, with reasons; and how often the guess that a candidate would lose was wrong."""

from __future__ import annotations

import msgspec

from atune.journal.candidate_state import Outcome
from atune.journal.events import BuildFailed, CandidateMeasured, CandidatePruned
from atune.journal.state import State

ENDED = {
    "budget": "the budget ended the run before them",
    "stopped": "the run was stopped before them",
    "exhausted": "the strategy proposed no more",
}
"""Why candidates were not tried, by how a run finished."""
UNAUDITED = {
    "budget": "its time ended the run before the audit",
    "stopped": "the run was stopped before the audit",
}
"""Why an audit that was asked for was not made, by how a run finished."""


class Untried(msgspec.Struct, frozen=True):
    """Candidates that were not tried for one reason. `indices`: of proposed ones; others have no record."""

    reason: str
    count: int
    indices: tuple[int, ...] = ()


class Audited(msgspec.Struct, frozen=True):
    """Candidates that were `skipped` as likely to lose, and how many of these were `tried` all the same.

    Compiles that were ended as hopeless are among them. `wrong`: those that were tried and faster than every other
    candidate, so that skipping would lose the best. `near`: those within 5 % of the fastest of the others. `missing`:
    why an audit that was asked for was not made.
    """

    skipped: int
    tried: int
    wrong: int
    near: int
    missing: str = ""


def passed_over(outcome: Outcome | None) -> bool:
    """Tell whether a candidate was left out by a guess, or its compile ended by one."""
    return isinstance(outcome, CandidatePruned) or (isinstance(outcome, BuildFailed) and outcome.hopeless)


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


def audited(state: State) -> Audited | None:
    """Return how good the guesses were; None if nothing was skipped."""
    if not state.skipped:
        return None
    codes = {state.first(index).index for index in state.skipped}
    outcomes = {code: state.outcome(code) for code in codes}
    tried = [o for o in outcomes.values() if o is not None and not passed_over(o)]
    others = [m.timing.latency_ms for m in state.ranked() if state.first(m.index).index not in codes]
    best = min(others, default=float("inf"))
    latencies = [o.timing.latency_ms for o in tried if isinstance(o, CandidateMeasured)]
    wrong, near = sum(ms < best for ms in latencies), sum(ms <= 1.05 * best for ms in latencies)
    return Audited(len(codes), len(tried), wrong, near, missing="" if tried else _missing(state))


def _missing(state: State) -> str:
    """Return why there was no audit; nothing where none was asked for, or the run has not ended."""
    asked = state.header is not None and state.header.settings.get("budget", {}).get("audit")
    return UNAUDITED.get(state.finished.reason, "") if asked and state.finished is not None else ""
