"""Warm start: reads the sources that `warm=` names into advice for a run. Reads data and runs no code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from atune.engine.search.warm_start import (
    Experience,
    advice_of,
    experience_of,
    finder,
    nearest_first,
    no_advice,
    same_kernel,
)
from atune.engine.start import Advise, Recall, Recalled
from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.model.candidate import Advice, config_key
from atune.model.device import DeviceInfo
from atune.workers.storage.result_cache import ResultCache
from atune.workers.storage.result_key import CacheEntry, result_key, same_problem
from atune.workload.workload import WorkloadSpec

Source = str | os.PathLike[str] | Result
Warm = Source | Sequence[Source] | None

CACHE = "cache"
"""Value of `warm` for the user's result cache."""
MOST_CACHED = 8
"""Most results taken from the cache, the nearest first."""


def sources(warm: Warm) -> Sequence[Source]:
    """Return the sources that `warm` names."""
    return (warm,) if isinstance(warm, (str, os.PathLike, Result)) else () if warm is None else warm


def adviser(warm: Warm) -> Advise:
    """Return a function that reads `warm` once the kernel is known. Raises `UsageError`."""
    given = sources(warm)
    wrong = f"warm: give a journal's path, a TuneResult, {CACHE!r}, or a list of these, got {warm!r}"
    if not isinstance(given, Sequence):
        raise UsageError(wrong)
    for source in given:
        if not isinstance(source, (str, os.PathLike, Result)) or source == "":
            raise UsageError(wrong)
        if not isinstance(source, Result) and source != CACHE and not os.path.exists(source):
            raise UsageError(f"warm {os.fspath(source)}: there is no such file; give a journal's path, or {CACHE!r}")
    return partial(_advise, tuple(given)) if given else no_advice


def _advise(
    sources: Sequence[Source], spec: WorkloadSpec, devices: Sequence[DeviceInfo]
) -> tuple[tuple[Advice, ...], list[str]]:
    """Read `sources`. Raises `UsageError` for a source without use here, and `JournalError` for a damaged journal."""
    experiences: list[Experience] = []
    remarks: list[str] = []
    for source in sources:
        if isinstance(source, Result):
            experiences.append(experience_of(source, source.journal or "result"))
        elif source == CACHE:
            found = nearest_first(_cached(ResultCache(), spec), spec, [device.name for device in devices])
            experiences += found[:MOST_CACHED]
            if not found:
                remarks.append(
                    "warm cache: the result cache has nothing of this kernel and space: no advice from there"
                )
        else:
            path = os.fspath(source)
            experiences.append(experience_of(Result.from_events(JournalReader(path), path, replayed=True), path))
    here = {device.name for device in devices}  # on others, what failed there may work
    known = [each if here & {*each.devices} else replace(each, failed=()) for each in experiences]
    advice, more = advice_of(known, spec)
    return advice, remarks + more


def _cached(cache: ResultCache, spec: WorkloadSpec) -> list[Experience]:
    """Return the cache's results of this kernel with configurations in its space."""
    find = finder(spec)
    entries = [e for e in cache.entries() if same_kernel(e.parts.kernel, e.parts.source, spec)]
    found = [each for entry in entries if (each := _experience(cache, entry)) is not None]
    return [each for each in found if find(each.measured)]


def _experience(cache: ResultCache, entry: CacheEntry) -> Experience | None:
    """Return an entry's measurements: all of them if it was tuned here, else only the winner's."""
    result = cache.find(entry.parts)
    return experience_of(result, f"{CACHE} {entry.key}") if result is not None else _winner(entry)


def _winner(entry: CacheEntry) -> Experience | None:
    """Return the measurement of an entry's winner, if it has one."""
    if not entry.latency_ms:
        return None
    parts = entry.parts
    arguments = parts.tuned_for or parts.problem
    measured = {config_key(entry.config): (entry.config, entry.latency_ms)}
    return Experience(
        f"{CACHE} {entry.key}", parts.kernel, parts.source, arguments if isinstance(arguments, dict) else {},
        (parts.device,), measured,
    )  # fmt: skip


def recaller(cached: bool | None) -> Recall | None:
    """Return a function that looks for a run's work in the result cache, as `cached` says; None for False."""
    return None if cached is False else partial(_recall, ResultCache(), bool(cached))


def _recall(cache: ResultCache, all_of_it: bool, header: RunStarted, spec: WorkloadSpec) -> Recalled:
    """Return the result of the same work, if `all_of_it` is wanted and there is one, else the winner as advice.

    Runs of the same work with other settings of the search, another space, or another problem of the same key, have a
    winner for that, too.
    """
    if (key := result_key(header)) is None:
        return Recalled()
    if all_of_it and (events := cache.events(key, header)):
        first = events[0]
        if isinstance(first, RunStarted) and same_problem(first.arguments, header.arguments):
            return Recalled(events)
    find = finder(spec)
    for entry in cache.entries(work=key.work):
        each = _winner(entry)
        if each is not None and find(each.measured):
            return Recalled(advice=advice_of([each], spec)[0])
    return Recalled()
