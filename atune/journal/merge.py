"""Joins journals of the same work, from other days or machines, into one that has each candidate's record once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from atune.errors import JournalError, UsageError
from atune.journal.events import (
    AnyEvent,
    ArtifactBuilt,
    BenchmarkFailed,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    DeviceReady,
    ReferenceMeasured,
    RunFinished,
    RunStarted,
    SpaceSurveyed,
    Warned,
)
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.journal.state import State
from atune.journal.writer import write_journal
from atune.model.artifact import Roles

Better = tuple[int, int]
"""How much a journal's record of a candidate counts, and the journal's number: of equals the later one counts."""


def merge(journals: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None) -> Result:
    """Return one result of all `journals`, and write it as a journal of its own to `output` where that is given.

    The work must be the same: kernel, problem, target and space. A candidate's measurement counts before a failure,
    and of equals the later journal in the given order. `Result.warnings` counts candidates with several outcomes,
    and names other differences (versions, settings). There is no final, because finals of different journals do not
    compare.

    Raises `JournalError` if a journal cannot be read or is of other work, and `UsageError` if one is given twice.
    """
    if not journals or isinstance(journals, str):
        raise UsageError("merge: give the journals, as a list of paths")
    paths = [str(Path(journal)) for journal in journals]
    if twice := [path for path, count in Counter(map(os.path.realpath, paths)).items() if count > 1]:
        raise UsageError(f"merge: {twice[0]} is given twice")
    states = [State.of(JournalReader(path)) for path in paths]
    _check_same_work(paths, states)
    events = [replace(event, seq=seq) for seq, event in enumerate(_joined(paths, states))]
    if output is not None:
        write_journal(str(output), events)
    return Result.from_events(events, None if output is None else str(output), replayed=True)


def _joined(paths: Sequence[str], states: Sequence[State]) -> Iterator[AnyEvent]:
    """Yield the events of one run that did what all of them did; their clocks follow each other."""
    chosen, several = _chosen(states)
    headers = list(map(_header, states))
    having = next((header for header in headers if header.default is not None), headers[0])
    refused = next((header.refused for header in headers if header.refused), "")
    default = {"default": having.default, "baseline": having.baseline, "refused": refused}
    offset_s, last = 0.0, None
    for number, (path, state) in enumerate(zip(paths, states, strict=True)):
        own = {index for index, (_, journal) in chosen.items() if journal == number}
        for event in JournalReader(path):
            last = replace(event, mono=round(event.mono + offset_s, 6))
            if (kept := _kept(last, state, own, default, first=number == 0)) is not None:
                yield kept
        offset_s += state.last_mono
    assert last is not None
    end: dict[str, Any] = {"seq": 0, "time": last.time, "mono": last.mono}
    for note in _notes(paths, states, several):
        yield Warned(**end, message=note)
    roles = next((state.finished.roles for state in states if state.finished), Roles())
    yield RunFinished(**end, wall_s=sum(state.wall_s for state in states), reason="merged", roles=roles)


def _kept(event: AnyEvent, state: State, own: set[int], default: dict[str, Any], *, first: bool) -> AnyEvent | None:
    """Return what the merged run has of `event`; None if nothing.

    `own`: the candidates whose records are from this journal, of which `state` has the outcomes. `default`: what
    the merged run's header has of the default.
    """
    match event:
        case RunStarted():
            return replace(event, **default) if first else None
        case SpaceSurveyed():
            return event if first else None
        case DeviceReady() | ReferenceMeasured() | Warned():
            return event
        case CandidateProposed() | CandidateLowered() | CandidateAliased():
            return event if event.index in own else None
        case CandidateMeasured() | CandidatePruned() | BuildFailed() | BenchmarkFailed():
            outcome = state.outcome(event.index)
            return event if event.index in own and outcome is not None and outcome.seq == event.seq else None
        case ArtifactBuilt():
            facts = event.machine or (None,) * len(event.indices)
            left = [(index, one) for index, one in zip(event.indices, facts, strict=True) if index in own]
            indices, machine = tuple(i for i, _ in left), tuple(one for _, one in left) if event.machine else ()
            return replace(event, indices=indices, machine=machine) if left else None
    return None  # of that run, and not of the merged one


def _chosen(states: Sequence[State]) -> tuple[dict[int, Better], int]:
    """Return which journal's record of each candidate counts, and how many candidates have several outcomes."""
    chosen, having = dict[int, Better](), dict[int, int]()
    for number, state in enumerate(states):
        for index, entry in state.entries.items():
            if not entry.key:
                continue
            chosen[index] = max(chosen.get(index, (0, 0)), (_worth(state, index), number))
            having[index] = having.get(index, 0) + (entry.in_space and state.outcome(index) is not None)
    return chosen, sum(count > 1 for count in having.values())


def _worth(state: State, index: int) -> int:
    """Return how much a record counts. An outcome of its own counts before that of a candidate with its code."""
    outcome = state.outcome(index)
    return 0 if outcome is None else 1 + (outcome.index == index) + 2 * isinstance(outcome, CandidateMeasured)


def _check_same_work(paths: Sequence[str], states: Sequence[State]) -> None:
    """Raise `JournalError` if the journals are of different work."""
    first, *others = [_header(state) for state in states]
    for path, other in zip(paths[1:], others, strict=True):
        differences = (
            ("another kernel, reference or check", first.fingerprint != other.fingerprint),
            (f"the problem is {other.arguments}, and not {first.arguments}", first.arguments != other.arguments),
            (f"the target is {other.target}, and not {first.target}", first.target != other.target),
            ("the space is another one", first.space != other.space),
        )
        if wrong := [text for text, differs in differences if differs]:
            raise JournalError(
                f"{path} records other work than {paths[0]}, and cannot be merged with it: {'; '.join(wrong)}"
            )


def _notes(paths: Sequence[str], states: Sequence[State], several: int) -> list[str]:
    """Return warnings about what may not compare, or is left out."""
    first, *others = map(_header, states)
    notes = []
    for path, other in zip(paths[1:], others, strict=True):
        for name in sorted(first.versions.keys() | other.versions.keys()):
            was, now = first.versions.get(name), other.versions.get(name)
            notes += [f"{path}: {name} {now}, in {paths[0]} it is {was}"] if was != now else []
        if first.settings.get("benchmark") != other.settings.get("benchmark"):
            notes.append(f"{path} was measured with other benchmark settings than {paths[0]}")
    notes.append(f"merged from {len(paths)} journals: {', '.join(paths)}; the finals of each are left out")
    if several:
        notes.append(
            f"candidates with several outcomes in the {len(paths)} journals: {several}; a measurement counts before a "
            "failure, and of equals the later journal"
        )
    return notes


def _header(state: State) -> RunStarted:
    assert state.header is not None, "a reader refuses a journal without a header"
    return state.header
