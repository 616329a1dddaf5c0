"""What a tuning would do: its candidates, known outcomes, and estimated time. Nothing is compiled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import JournalError, TargetError
from atune.journal.events import (
    BenchmarkFailed,
    BuildFailed,
    CandidateAliased,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    Event,
    RunStarted,
)
from atune.journal.reader import JournalReader
from atune.journal.result import TuneResult
from atune.journal.state import State
from atune.local.questions import discover, survey_space
from atune.model.candidate import Config, thaw
from atune.model.device import Target
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.processes.messages import Discovery
from atune.storage.result_cache import ResultCache
from atune.system.paths import artifacts_folder, cache_folder
from atune.workload.space_survey import SpaceSurvey
from atune.workload.workload import FileRef

RECENT = 50
"""Number of journals read for the time of an earlier run: the newest in the cache folder."""

_OUTCOMES = CandidateMeasured | BuildFailed | BenchmarkFailed | CandidatePruned | CandidateAliased


class Pace(msgspec.Struct, frozen=True):
    """Time of an earlier run: `fixed_s` for begin and end, plus `per_candidate_s`. `same`: the source is unchanged."""

    journal: str
    candidates: int
    fixed_s: float
    per_candidate_s: float
    same: bool


class Begun(msgspec.Struct, frozen=True):
    """Contents of the journal that the run would continue. `same`: whether its work looks the same."""

    journal: str
    same: bool
    done: int
    outcomes: dict[str, int]


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuning would do.

    `to_do`: most candidates that would be compiled; None if the space is larger than the part examined.
    `seconds`: estimate from `pace` and the budget; None without a basis. `cached`: winners of this work in the
    result cache. `libraries`: their number in the artifact store. `impossible`: why nothing can be tuned here.
    """

    space: SpaceSurvey
    target: Target | None
    devices: tuple[str, ...]
    impossible: str
    begun: Begun | None
    cached: tuple[Config, ...]
    libraries: int
    to_do: int | None
    pace: Pace | None
    seconds: float | None


async def dry_run(
    workload: FileRef,
    *,
    journal: str | None = None,
    target: str = "auto",
    devices: str | Iterable[str] = "all",
    budget: Budget | None = None,
    compile: CompileSettings | None = None,
    benchmark: BenchmarkSettings | None = None,
) -> DryRun:
    """Return what tuning `workload` with these options would do. A worker loads its file and counts its space.

    Raises `WorkloadError` and `SpaceError` like `tune`, and `JournalError` if `journal` cannot be read.
    """
    budget = budget or Budget()
    found, impossible = await _discovered(workload, target, devices, compile, benchmark)
    space = await survey_space(workload)
    begun = _begun(journal, space)
    left = None if space.candidates is None else max(0, space.candidates - (begun.done if begun else 0))
    most = budget.candidates if space.candidates is None else budget.most(space.candidates)
    allowed = None if most is None else max(0, most - (begun.done if begun else 0))
    to_do = min((number for number in (left, allowed) if number is not None), default=None)
    pace = _pace(workload, journal, space)
    return DryRun(
        space=space,
        target=found.target if found else None,
        devices=tuple(device.name for device in found.devices) if found else (),
        impossible=impossible,
        begun=begun,
        cached=_cached(space, found),
        libraries=sum(1 for _ in artifacts_folder().glob("*.so")),
        to_do=to_do,
        pace=pace,
        seconds=_seconds(pace, to_do, budget),
    )


async def _discovered(
    workload: FileRef,
    target: str,
    devices: str | Iterable[str],
    compile: CompileSettings | None,
    benchmark: BenchmarkSettings | None,
) -> tuple[Discovery | None, str]:
    names = (devices,) if isinstance(devices, str) else tuple(devices)
    try:
        asked = compile or CompileSettings(), benchmark or BenchmarkSettings()
        return await discover(workload, target, names, *asked), ""
    except TargetError as error:
        return None, str(error)


def _begun(journal: str | None, space: SpaceSurvey) -> Begun | None:
    """Return what `journal` holds of this work, or None if the file is missing or empty."""
    if journal is None or not os.path.isfile(journal) or not os.path.getsize(journal):
        return None
    state = State()
    for event in JournalReader(Path(journal)):
        state.apply(event)
    keys = set(space.keys)
    here = {entry.index for entry in state.entries.values() if entry.key and (not keys or entry.key in keys)}
    done = sum(state.outcome(index) is not None for index in here)
    result = TuneResult(state, journal)
    counts = {"measured": result.measured, "failed": result.failed, "pruned": result.pruned}
    same = state.header is not None and state.header.fingerprint in space.fingerprints
    return Begun(journal, same, done, {**counts, "duplicates": result.duplicates})


def _cached(space: SpaceSurvey, found: Discovery | None) -> tuple[Config, ...]:
    """Return the winners in the result cache for this workload, its problem, and the devices of this machine."""
    if found is None:
        return ()
    here = {" + ".join(sorted({device.name for device in found.devices}))}
    return tuple(
        entry.config
        for entry in ResultCache().entries(kernel=space.workload)
        if entry.parts.target == str(found.target)
        and entry.parts.device in here
        and isinstance(entry.parts.problem, Mapping)
        and thaw(entry.parts.problem) == thaw(space.arguments)
        and entry.parts.fingerprint in space.prints
    )


def _pace(workload: FileRef, journal: str | None, space: SpaceSurvey) -> Pace | None:
    """Return the time of a run: of `begun`, else of the newest journal, preferably with the same source."""
    paths = [Path(journal)] if journal is not None else []
    with suppress(OSError):
        stored = (cache_folder() / "journals").glob("*.jsonl")
        paths += sorted(stored, key=lambda path: path.stat().st_mtime, reverse=True)[:RECENT]
    changed = None
    for path in paths:
        pace = None
        with suppress(JournalError, OSError):
            pace = _pace_of(path, workload.origin, space)
        if pace is not None and pace.same:
            return pace
        changed = changed or pace
    return changed


def _pace_of(path: Path, origin: str, space: SpaceSurvey) -> Pace | None:
    """Return the pace of a run of the same workload, or None if the journal does not tell it."""
    events = iter(JournalReader(path))
    header = next(events, None)
    if not isinstance(header, RunStarted):
        return None
    same = header.fingerprint in space.fingerprints
    if not same and (header.origin, header.workload) != (origin, space.workload):
        return None
    return pace_of(events, str(path), same)


def pace_of(events: Iterable[Event], journal: str, same: bool) -> Pace | None:
    """Fold a run's `events` into its pace. Returns None if fewer than two candidates have an outcome."""
    first = last = end = 0.0
    done: set[int] = set()
    for event in events:
        end = event.mono
        if isinstance(event, CandidateProposed):
            first = first or event.mono
        elif isinstance(event, _OUTCOMES):
            done.add(event.index)
            last = event.mono
    if len(done) < 2:
        return None
    return Pace(journal, len(done), round(first + end - last, 3), round((last - first) / len(done), 4), same)


def _seconds(pace: Pace | None, to_do: int | None, budget: Budget) -> float | None:
    if pace is None:
        return None
    working = None if to_do is None else pace.per_candidate_s * to_do
    bounded = [seconds for seconds in (working, budget.seconds) if seconds is not None]
    return round(pace.fixed_s + min(bounded), 1) if bounded else None


def as_data(found: DryRun) -> dict[str, Any]:
    """Return a dry run as ``--json`` prints it."""
    space = found.space
    return {
        "workload": space.workload,
        "arguments": msgspec.to_builtins(space.arguments),
        "target": None if found.target is None else str(found.target),
        "devices": list(found.devices),
        "impossible": found.impossible or None,
        "points": space.points,
        "looked_at": space.looked_at,
        "exact": space.exact,
        "candidates": space.candidates,
        "refused": msgspec.to_builtins(space.refusals),
        "to_do": found.to_do,
        "journal": msgspec.to_builtins(found.begun),
        "cached": msgspec.to_builtins(found.cached),
        "libraries": found.libraries,
        "seconds": found.seconds,
        "pace": msgspec.to_builtins(found.pace),
    }
