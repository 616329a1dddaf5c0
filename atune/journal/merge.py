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
from atune.journal.several import Places, Several
from atune.journal.state import State
from atune.journal.writer import write_journal
from atune.model.measurement import FinalEntry


def merge(journals: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None) -> TuneResult:
    """Return one result of all `journals`, and write it as a journal of its own to `output` where that is given.

    The work must be the same: kernel, problem, target. Candidates are matched by their configuration. Those of the
    first journal come first. Shards of one space become the whole space. If several journals measured a candidate on
    the same model of device, its latency is the median of all their samples. Otherwise a measurement counts before a
    failure, then the later journal in the given order. `TuneResult.warnings` counts these candidates, and tells of
    other differences (versions, settings). With more than one journal there is no final, because finals of different
    journals do not compare.

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

    `indices`: the merged run's index of each candidate, by the journal's own. `several`: what counts of candidates with
    several outcomes. `alone`: there is no other part. `header`: the merged run's. `surveyed`: whether what this part
    found of the space is the merged run's.
    """

    number: int
    state: State
    indices: Mapping[int, int]
    several: Several
    alone: bool
    header: RunStarted
    surveyed: bool

    def counts(self, index: int) -> bool:
        """Tell whether this part's outcome counts for its candidate `index`."""
        return self.several.chosen.get(self.key(index), self.number) == self.number

    def key(self, index: int) -> str:
        """Return the key of the first candidate with the code of candidate `index`."""
        return self.state.entries[self.state.first(index).index].key


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
    notes = _notes(paths, states)
    spaces = [Places.of(state, whole=len(paths) > 1) for state in states]
    survey, differing = _survey(states, spaces)
    numbers = _numbers(states, spaces)
    several = Several.of(states)
    header = _header(states, spaces, max([len(numbers), *(space.total for space in spaces)]))
    sequence = _Sequence()
    for number, (path, state) in enumerate(zip(paths, states, strict=True)):
        indices = {entry.index: numbers[entry.key] for entry in state.entries.values() if entry.key}
        surveyed = survey and number == 0
        part = _Part(number, state, indices, several, alone=len(paths) == 1, header=header, surveyed=surveyed)
        last: Event | None = states[0].header
        for last in JournalReader(path):
            if (kept := _kept(last, part)) is not None:
                yield sequence.next(kept)
        assert last is not None
        if number == len(paths) - 1:
            for note in notes + differing + several.notes(paths):
                yield sequence.next(Warned(seq=0, time=last.time, mono=last.mono, message=note))
        yield sequence.next(_ended(last, state, alone=part.alone))
        sequence.end_part(last.mono)


def _header(states: Sequence[State], spaces: Sequence[Places], total: int) -> RunStarted:
    """Return the merged run's header, with `total` candidates.

    No strategy over the whole space proposed what those of shards did: it is told of all that as known before.
    """
    first, known = spaces[0], spaces[0].header.known
    if any(space.sharding for space in spaces):
        surveyed = {e.key: e.surveyed for state in states for e in state.entries.values() if e.key}
        known = sum(not of_survey for of_survey in surveyed.values())
    advice = tuple(
        msgspec.structs.replace(each, places={key: first.whole(place) for key, place in each.places.items()})
        for each in first.header.advice
    )
    one = all((space.space, space.large) == (first.space, first.large) for space in spaces)
    default = next((space.default for space in spaces if space.default is not None), None) if one else first.default
    return msgspec.structs.replace(
        first.header, total=total, large=one and first.large, space=first.space, default=default,
        known=known, advice=advice,
        shard=first.header.shard if len(spaces) == 1 else None,
    )  # fmt: skip


def _numbers(states: Sequence[State], spaces: Sequence[Places]) -> dict[str, int]:
    """Return the merged run's index of each configuration, by its key.

    The journals' own are kept where they number one space alike. Else the first one's are, and what only later ones
    have gets the indices that are free, in order.
    """
    if (agreed := _agreed(states, spaces)) is not None:
        return agreed
    first, *later = [[e for _, e in sorted(state.entries.items()) if e.key] for state in states]
    numbers = {entry.key: spaces[0].whole(entry.index) for entry in first}
    taken = set(numbers.values())
    free = (index for index in itertools.count() if index not in taken)
    for entry in itertools.chain.from_iterable(later):
        if entry.key not in numbers:
            numbers[entry.key] = next(free)
    return numbers


def _agreed(states: Sequence[State], spaces: Sequence[Places]) -> dict[str, int] | None:
    """Return each configuration's index, by its key, where all journals are of one space and number it alike."""
    if len({(space.space, space.large) for space in spaces}) != 1:
        return None
    numbers = dict[str, int]()
    for state, space in zip(states, spaces, strict=True):
        for entry in state.entries.values():
            if entry.key and numbers.setdefault(entry.key, index := space.whole(entry.index)) != index:
                return None
    return numbers if len(set(numbers.values())) == len(numbers) else None


def _survey(states: Sequence[State], spaces: Sequence[Places]) -> tuple[bool, list[str]]:
    """Tell whether the first journal's survey of the space is that of all, and what to say where it is not.

    A journal without a survey contradicts none. That of a shard says nothing of the whole space, which a run that
    resumes the merged journal surveys.
    """
    found = [state.surveyed for state in states if state.surveyed is not None]
    if not found or states[0].surveyed is None or any(space.sharding for space in spaces):
        return False, []
    first = found[0]
    if _agreed(states, spaces) is not None and all(
        (one.indices, one.prior, one.facts) == (first.indices, first.prior, first.facts) for one in found[1:]
    ):
        return True, []
    return False, ["the journals' surveys of the space differ: a run that resumes the merged journal has no prior"]


def _kept(event: AnyEvent, part: _Part) -> Event | None:
    """Return the merged run's version of `event`; None if the merged run omits it."""
    own = part.indices
    match event:
        case RunStarted():
            return part.header if part.number == 0 else _resumed(event, part.number)
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
    if index not in own or not part.counts(index):
        return None
    moved: Event = msgspec.structs.replace(event, index=own[index])
    if isinstance(moved, CandidateMeasured) and (timing := part.several.pooled.get(part.key(index))) is not None:
        return msgspec.structs.replace(moved, timing=timing)
    return moved


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
