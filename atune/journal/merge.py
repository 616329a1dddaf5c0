"""Merge journals of the same work, from different days or machines, into a single journal."""

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
    BitsCompared,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    DeviceReady,
    ReferenceMeasured,
    RunFinished,
    SpaceSurveyed,
    Warned,
)
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.journal.state import Outcome, State, header_in
from atune.journal.writer import write_journal
from atune.model.artifact import Roles


def merge(journals: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None) -> Result:
    """Return the joint result of all `journals`. If `output` is given, also write a new journal to this path.

    The journals must record the same work: kernel, problem, target and space. If a candidate has several outcomes, a
    measurement overrides a failure. If two journals have a measurement, or two have a failure, the later of the
    `journals` is preferred. `Result.warnings` says how many candidates have several outcomes, and which versions or
    settings differ. The result has no final, because the finals of different journals cannot be compared.

    Raises `JournalError` if a journal cannot be read or records other work, and `UsageError` if a path is given twice.
    """
    if not journals or isinstance(journals, str):
        raise UsageError("merge: give a list of paths of journals")
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
    """Yield events as if a single run had done the work of all journals, with a clock that continues between journals.

    `State` resolves conflicts, because it keeps only the last outcome of a candidate, or of candidates with equal code.
    """
    headers = list(map(header_in, states))
    with_default = next((header for header in headers if header.default is not None), headers[0])
    refused = next((header.refused for header in headers if header.refused), "")
    yield replace(headers[0], default=with_default.default, baseline=with_default.baseline, refused=refused)
    offset_s, last = 0.0, None
    for number, (path, state) in enumerate(zip(paths, states, strict=True)):
        others = [other for other in states if other is not state]
        for event in JournalReader(path):
            last = replace(event, mono=round(event.mono + offset_s, 6))
            if isinstance(event, SpaceSurveyed):
                counts = number == 0
            elif isinstance(event, BitsCompared):  # no run compared the finalists of all runs
                last, counts = replace(last, seeds=1), True
            elif isinstance(event, CandidateAliased):  # with other versions, another run may have measured it
                outcomes = (other.outcome(event.index) for other in others)
                counts = not any(isinstance(o, CandidateMeasured) and o.index == event.index for o in outcomes)
            elif isinstance(event, Outcome):
                counts = _counts(event, state, others)
            else:
                counts = isinstance(event, _MERGED)
            if counts:
                yield last
        offset_s += state.last_mono
    assert last is not None
    end: dict[str, Any] = {"seq": 0, "time": last.time, "mono": last.mono}
    for note in _notes(paths, states):
        yield Warned(**end, message=note)
    roles = next((state.finished.roles for state in states if state.finished), Roles())
    yield RunFinished(**end, wall_s=sum(state.wall_s for state in states), reason="merged", roles=roles)


_MERGED = DeviceReady | ReferenceMeasured | Warned | CandidateProposed | CandidateLowered | ArtifactBuilt
"""The types of events that are copied from every journal to the merged run."""


def _counts(event: Outcome, state: State, others: Sequence[State]) -> bool:
    """Tell whether `event` is the last outcome in its journal, and not a failure that another journal's measurement
    overrides."""
    last = state.outcome(event.index)
    measured = isinstance(event, CandidateMeasured)
    elsewhere = any(isinstance(other.outcome(event.index), CandidateMeasured) for other in others)
    return last is not None and last.seq == event.seq and (measured or not elsewhere)


def _check_same_work(paths: Sequence[str], states: Sequence[State]) -> None:
    first, *others = map(header_in, states)
    for path, other in zip(paths[1:], others, strict=True):
        parts = {
            "kernel, reference or check": "fingerprint",
            "problem": "arguments",
            "target": "target",
            "space": "space",
        }
        if first.arguments != other.arguments:
            del parts["kernel, reference or check"]  # the fingerprint covers the arguments
        if wrong := [part for part, name in parts.items() if getattr(first, name) != getattr(other, name)]:
            raise JournalError(
                f"{path} cannot be merged with {paths[0]}, because it records other work: another {', '.join(wrong)}"
            )


def _notes(paths: Sequence[str], states: Sequence[State]) -> list[str]:
    """Return warnings about the differences between the journals, and about events that are left out."""
    first, *others = map(header_in, states)
    notes = []
    for path, other in zip(paths[1:], others, strict=True):
        for name in sorted(first.versions.keys() | other.versions.keys()):
            was, now = first.versions.get(name), other.versions.get(name)
            notes += [f"{path} was written with {name} {now}, but {paths[0]} with {was}"] if was != now else []
        if (first.settings.get("benchmark"), first.torch) != (other.settings.get("benchmark"), other.torch):
            notes.append(f"{path} was measured with other benchmark or torch settings than {paths[0]}")
    many = "s" * (len(paths) > 1)
    notes.append(f"merged from {len(paths)} journal{many}: {', '.join(paths)}; the journals' finals are left out")
    tried = Counter(i for state in states for i, entry in state.entries.items() if entry.in_space and state.outcome(i))
    if several := sum(count > 1 for count in tried.values()):
        notes.append(
            f"{several} candidate{'s have' if several > 1 else ' has'} several outcomes in the {len(paths)} journals; "
            "a measurement overrides a failure, and otherwise the later journal's outcome is used"
        )
    return notes
