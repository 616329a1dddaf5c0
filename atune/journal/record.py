"""The outcome of one candidate, as a result tells it; the finalists that still stand, and what was not tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from atune.journal.candidate_state import Entry, Status, status_of
from atune.journal.events import BenchmarkFailed, BuildFailed, CandidateMeasured, CandidatePruned
from atune.journal.state import State
from atune.model.artifact import StaticFacts
from atune.model.candidate import Config
from atune.model.measurement import FinalEntry, Timing
from atune.model.occupancy import MachineFacts
from atune.model.roofline import Roofline

Rooflines = Callable[[Timing | None, str], Roofline | None]
ENDED = {
    "budget": "the budget ended the run before them",
    "stopped": "the run was stopped before them",
    "exhausted": "the strategy proposed no more",
}
"""Why candidates were not tried, by how a run finished."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one candidate.

    `index`, `key`, `config`: its number in the space, 16 hex digits of its configuration, and the configuration.
    `status`: ``duplicate`` is the same code as candidate `same_as`, which carries the measurement or failure;
    ``remaining`` was proposed and has no outcome yet. `latency_ms`, `timing`: from the final where the candidate was in
    it, else from its first timing; a duplicate has its original's. `kind`, `message`, `detail`: why it failed; for a
    pruned candidate `message` is the reason. `device`: id of the device that measured it; empty where none did.
    `facts`: what lowering found, None for a candidate that was not lowered. `code_key`: equal for equal code, else
    empty.
    """

    index: int
    key: str
    config: Config
    status: Status
    latency_ms: float | None = None
    timing: Timing | None = None
    device: str = ""
    same_as: int | None = None
    kind: str = ""
    message: str = ""
    detail: str = ""
    facts: StaticFacts | None = None
    code_key: str = ""
    machine: MachineFacts | None = None
    """Registers, stack and code; a duplicate has its original's. None for target ``c``, and where none was built."""
    roofline: Roofline | None = None
    """How near its latency comes to its device's peaks; None if the problem's operations and bytes are unknown."""
    instead: int | None = None
    """The layout of the same configuration that was preferred; None if no layout was chosen, or this one was."""


def record_of(state: State, entry: Entry, finals: Mapping[int, Timing], rooflines: Rooflines) -> Record:
    """Return the record of a candidate. `finals`: the timings of the final that stand, by credited index.

    `rooflines`: returns how near a timing comes to the peaks of a device.
    """
    first = state.first(entry.index)
    timing, device, kind, message, detail = None, "", "", "", ""
    instead = None
    match first.outcome:
        case CandidateMeasured() as event:
            final = finals.get(first.index)
            timing = final or event.timing
            device = state.final.device if final and state.final else event.device
        case CandidatePruned() as event:
            message, instead = event.reason, event.instead
        case BuildFailed() | BenchmarkFailed() as event:
            kind, message, detail = event.kind, event.message, event.detail
            device = event.device if isinstance(event, BenchmarkFailed) else ""
    return Record(
        index=entry.index,
        key=entry.key,
        config=entry.config,
        status=status_of(first) if first is entry else "duplicate",
        latency_ms=None if timing is None else timing.latency_ms,
        timing=timing,
        device=device,
        same_as=None if first is entry else first.index,
        kind=kind,
        message=message,
        detail=detail,
        facts=entry.facts,
        code_key=entry.code_key,
        machine=first.machine,
        roofline=rooflines(timing, device),
        instead=instead,
    )


def standing(state: State) -> tuple[FinalEntry, ...]:
    """Return the entries of the final whose candidates are still measured, by their credited index."""
    entries = state.final.entries if state.final else ()
    firsts = [(state.first(e.index), e.timing) for e in entries]
    return tuple(FinalEntry(e.index, timing) for e, timing in firsts if isinstance(e.outcome, CandidateMeasured))


def ties_of(state: State, final: Sequence[FinalEntry]) -> tuple[int, ...] | None:
    """Return the credited index of those that tie with the winner; None where the final does not say, or lost it."""
    if state.final is None or not final:
        return None
    if state.first(state.final.entries[0].index).index != final[0].index:
        return None
    ties = {state.first(index).index for index in state.final.ties}
    return tuple(entry.index for entry in final[1:] if entry.index in ties)


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
