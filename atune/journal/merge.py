"""Several journals of the same work, from other days or machines, as one result."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import JournalError, UsageError
from atune.journal.events import (
    AnyEvent,
    ArtifactBuilt,
    BestChanged,
    CandidateAliased,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    CompileRepeated,
    DeviceReady,
    Event,
    FinalOrdered,
    GroupSplit,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
    SpaceSurveyed,
    Warned,
    WinnerProven,
)
from atune.journal.reader import JournalReader
from atune.journal.result import TuneResult
from atune.journal.state import Entry, State, status_of
from atune.journal.writer import write_journal
from atune.model.measurement import FinalEntry


def merge(journals: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None) -> TuneResult:
    """Return one result of all `journals`, and write it as a journal of its own to `output` where that is given.

    The work must be the same: kernel, problem, target. Candidates are matched by their configuration. Those of the
    first journal come first. If several journals have an outcome, a measurement counts before a failure, then the later
    journal in the given order. `TuneResult.warnings` lists these choices, and other differences (devices, versions).
    With more than one journal there is no final, because finals of different journals do not compare.

    Raises `JournalError` if a journal cannot be read or is of other work.
    """
    if not journals or isinstance(journals, str):
        raise UsageError("merge: give the journals, as a list of paths")
    paths = [str(Path(journal)) for journal in journals]
    events = list(_merged(paths))
    if output is not None:
        write_journal(str(output), events)
    return TuneResult.from_events(events, None if output is None else str(output), replayed=True)


@dataclass(frozen=True)
class _Part:
    """One of the journals, as a part of the merged run.

    `indices`: the merged run's index of each candidate, by the journal's own. `chosen`: which part's outcome counts,
    by configuration key, for all parts. `alone`: there is no other part. `large`: all are of one large space.
    `surveyed`: whether what this part found of the space is the merged run's.
    """

    number: int
    state: State
    indices: Mapping[int, int]
    chosen: Mapping[str, int]
    alone: bool
    large: bool
    surveyed: bool

    def counts(self, index: int) -> bool:
        """Tell whether this part's outcome counts for its candidate `index`."""
        key = self.state.entries[self.state.first(index).index].key
        return self.chosen.get(key, self.number) == self.number


class _Sequence:
    """Numbers the events of all parts through, on one clock that goes on where the part before ended."""

    def __init__(self) -> None:
        self._seq, self._offset_s = 0, 0.0
        self._former = list[int]()
        """`seq` of each event of the part, as its journal has it."""

    def next(self, event: Event) -> Any:
        mono = round(event.mono + self._offset_s, 6)
        changes: dict[str, Any] = {"seq": self._seq, "mono": mono}
        if isinstance(event, CandidateProposed) and event.heard:
            changes["heard"] = self._seq - len(self._former) + bisect.bisect_right(self._former, event.heard) - 1
        self._former.append(event.seq)
        self._seq += 1
        return msgspec.structs.replace(event, **changes)

    def end_part(self, seconds: float) -> None:
        self._offset_s += seconds
        self._former.clear()


def _merged(paths: Sequence[str]) -> Iterator[AnyEvent]:
    """Yield the events of one run that did what all of them did, one part a journal."""
    states = [_state(path) for path in paths]
    survey, differing = _survey(states)
    notes = _notes(paths, states) + differing
    numbers = _numbers(states)
    chosen, conflicts = _chosen(paths, states)
    total = max([len(numbers), *(state.total for state in states)])
    sequence = _Sequence()
    for number, (path, state) in enumerate(zip(paths, states, strict=True)):
        indices = {entry.index: numbers[entry.key] for entry in state.entries.values() if entry.key}
        part = _Part(
            number, state, indices, chosen,
            alone=len(paths) == 1, large=_one_large_space(states), surveyed=survey and number == 0,
        )  # fmt: skip
        last: Event | None = states[0].header
        for last in JournalReader(path):
            if (kept := _kept(last, part, total)) is not None:
                yield sequence.next(kept)
        assert last is not None
        if number == len(paths) - 1:
            for note in notes + conflicts:
                yield sequence.next(Warned(seq=0, time=last.time, mono=last.mono, message=note))
        yield sequence.next(_ended(last, state, alone=part.alone))
        sequence.end_part(last.mono)


def _numbers(states: Sequence[State]) -> dict[str, int]:
    """Return the merged run's index of each configuration, by its key.

    The journals' own are kept where they number one space alike. Else the first one's are, and what only later ones
    have gets the indices that are free, in order.
    """
    if (agreed := _agreed(states)) is not None:
        return agreed
    first, *later = [[e for _, e in sorted(state.entries.items()) if e.key] for state in states]
    numbers = {entry.key: entry.index for entry in first}
    taken = set(numbers.values())
    free = (index for index in itertools.count() if index not in taken)
    for entry in itertools.chain.from_iterable(later):
        if entry.key not in numbers:
            numbers[entry.key] = next(free)
    return numbers


def _agreed(states: Sequence[State]) -> dict[str, int] | None:
    """Return each configuration's index, by its key, where all journals are of one space and number it alike."""
    headers = [state.header for state in states if state.header is not None]
    if len({(header.space, header.large) for header in headers}) != 1:
        return None
    numbers = dict[str, int]()
    for entry in itertools.chain.from_iterable(state.entries.values() for state in states):
        if entry.key and numbers.setdefault(entry.key, entry.index) != entry.index:
            return None
    return numbers if len(set(numbers.values())) == len(numbers) else None


def _survey(states: Sequence[State]) -> tuple[bool, list[str]]:
    """Tell whether the first journal's survey of the space is that of all, and what to say where it is not.

    A journal without a survey contradicts none.
    """
    found = [state.surveyed for state in states if state.surveyed is not None]
    if not found or states[0].surveyed is None:
        return False, []
    first = found[0]
    if _agreed(states) is not None and all(
        (one.indices, one.prior, one.facts) == (first.indices, first.prior, first.facts) for one in found[1:]
    ):
        return True, []
    return False, ["the journals' surveys of the space differ: a run that goes on with the merged one has no prior"]


def _one_large_space(states: Sequence[State]) -> bool:
    """Tell whether candidates' indices are places of one large space in all journals."""
    headers = [state.header for state in states]
    return all(h is not None and h.large for h in headers) and len({h.space for h in headers if h is not None}) == 1


def _kept(event: AnyEvent, part: _Part, total: int) -> Event | None:
    """Return the merged run's version of `event`; None if the merged run omits it."""
    own = part.indices
    match event:
        case RunStarted():
            header = msgspec.structs.replace(event, total=total, large=part.large)
            return header if part.number == 0 else _resumed(event, part.number)
        case CandidateProposed():
            return msgspec.structs.replace(event, index=own[event.index])
        case CandidatePruned(instead=int(instead)) if event.index in own:
            return msgspec.structs.replace(event, index=own[event.index], instead=own.get(instead))
        case CandidateAliased() if event.index in own and event.same_as in own:
            return msgspec.structs.replace(event, index=own[event.index], same_as=own[event.same_as])
        case ArtifactBuilt():
            kept = [i for i in event.indices if i in own]
            facts = dict(zip(event.indices, event.machine, strict=False))
            machine = tuple(facts[i] for i in kept) if len(facts) == len(event.indices) else ()
            return msgspec.structs.replace(event, indices=tuple(own[i] for i in kept), machine=machine)
        case GroupSplit() | CompileRepeated():
            return msgspec.structs.replace(event, indices=tuple(own[i] for i in event.indices if i in own))
        case FinalOrdered() if part.alone:
            entries = tuple(FinalEntry(own[e.index], e.timing) for e in event.entries if e.index in own)
            return msgspec.structs.replace(event, entries=entries)
        case WinnerProven() if not part.alone:
            return None  # as with the finals: that journal's winner need not be the merged one's
        case SpaceSurveyed():
            return event if part.surveyed else None  # a strategy's, of that run's indices
        case RunResumed() | RunFinished() | RunInterrupted() | BestChanged() | FinalOrdered():
            return None  # of that run, and not of the merged one
        case DeviceReady():
            return event
    index: int | None = getattr(event, "index", None)
    if index is None:
        return event
    return msgspec.structs.replace(event, index=own[index]) if index in own and part.counts(index) else None


def _ended(last: Event, state: State, *, alone: bool) -> RunFinished | RunInterrupted:
    """Return the end of a part, which is a whole journal. A journal's own winner is the merged one's if it is alone."""
    stamp: dict[str, Any] = {"time": last.time, "mono": last.mono, "wall_s": state.wall_s}
    if state.finished is None:
        return RunInterrupted(seq=0, reason="merged, and not finished", **stamp)
    end = state.finished
    kept: dict[str, Any] = {"kernel": end.kernel, "out_idx": end.out_idx, "total": end.total} if alone else {}
    return RunFinished(seq=0, reason="merged", **stamp, **kept)


def _resumed(event: RunStarted, part: int) -> RunResumed:
    return RunResumed(seq=0, time=event.time, mono=0.0, part=part, versions=event.versions)


def _state(path: str) -> State:
    state = State()
    for event in JournalReader(path):
        state.apply(event)
    return state


def _notes(paths: Sequence[str], states: Sequence[State]) -> list[str]:
    """Return warnings about what may not compare, or is omitted. Raises `JournalError` if the work differs."""
    if len(paths) == 1:
        return []
    header = states[0].header
    assert header is not None
    notes = [
        note
        for path, state in zip(paths[1:], states[1:], strict=True)
        for note in _compare(paths[0], header, path, state)
    ]
    return [*notes, f"merged from {len(paths)} journals: {', '.join(paths)}; the finals of each are left out"]


def _compare(first: str, header: RunStarted, path: str, state: State) -> list[str]:
    other = state.header
    assert other is not None
    wrong = [
        text
        for text, differs in (
            ("another kernel, reference or check", header.fingerprint != other.fingerprint),
            (f"the problem is {other.arguments}, and not {header.arguments}", header.arguments != other.arguments),
            (f"the target is {other.target}, and not {header.target}", header.target != other.target),
        )
        if differs
    ]
    if wrong:
        raise JournalError(f"{path} is of other work than {first}, and cannot be merged with it: {'; '.join(wrong)}")
    notes = []
    for name in sorted(header.versions.keys() | other.versions.keys()):
        if header.versions.get(name) != other.versions.get(name):
            notes.append(f"{path}: {name} {other.versions.get(name)}, in {first} it is {header.versions.get(name)}")
    if header.settings.get("benchmark") != other.settings.get("benchmark"):
        notes.append(f"{path} was measured with other benchmark settings than {first}")
    return notes


def _chosen(paths: Sequence[str], states: Sequence[State]) -> tuple[dict[str, int], list[str]]:
    """Return, by configuration key, which journal's outcome counts where several have one, and why."""
    having: dict[str, list[tuple[bool, int, Entry]]] = {}
    for part, state in enumerate(states):
        for entry in state.entries.values():
            if entry.key and entry.outcome is not None:
                having.setdefault(entry.key, []).append((isinstance(entry.outcome, CandidateMeasured), part, entry))
    notes: list[str] = []
    chosen = {key: max(found, key=lambda item: item[:2])[1] for key, found in having.items()}
    for key, found in having.items():
        if len(found) > 1:
            told = ", ".join(f"{status_of(entry)}{_latency(entry.outcome)} in {paths[i]}" for _, i, entry in found)
            notes.append(f"candidate {key} has several outcomes ({told}): that of {paths[chosen[key]]} counts")
    return chosen, notes


def _latency(outcome: Any) -> str:
    return f" {outcome.timing.latency_ms:.4g} ms" if isinstance(outcome, CandidateMeasured) else ""
