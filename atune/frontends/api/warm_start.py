"""Warm start: what was the fastest in earlier runs of the same kernel is tried first. Runs no code of a workload."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from atune.engine.start import Advise, Recall, Recalled
from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.model.candidate import Advice, Config, config_key
from atune.model.device import DeviceInfo
from atune.model.problem import distance
from atune.workers.storage.result_cache import ResultCache
from atune.workers.storage.result_key import CacheEntry, result_key, same_problem
from atune.workload.workload import WorkloadSpec

Source = str | os.PathLike[str] | Result
Warm = Source | Sequence[Source] | None

CACHE = "cache"
"""Value of `warm` for the user's result cache."""
MOST_CACHED = 8
"""Most results taken from the cache, the nearest first."""
FIRST = 4
"""Configurations of each source that are tried first."""


@dataclass(frozen=True)
class Experience:
    """What a run measured of a kernel on one problem.

    `kernel`: SHA-256 of the kernel's source and closure; empty if unknown. `measured`: configurations with their
    latency, ms, by key.
    """

    source: str
    name: str
    kernel: str
    arguments: Mapping[str, Any]
    devices: Sequence[str]
    measured: Mapping[str, tuple[Config, float]]


def sources(warm: Warm) -> Sequence[Source]:
    """Return the sources that `warm` names."""
    return (warm,) if isinstance(warm, (str, os.PathLike, Result)) else () if warm is None else warm


def adviser(warm: Warm) -> Advise | None:
    """Return a function that reads `warm` once the kernel is known; None without a source. Raises `UsageError`."""
    given = sources(warm)
    wrong = f"warm: give a journal's path, a TuneResult, {CACHE!r}, or a list of these, got {warm!r}"
    if not isinstance(given, Sequence):
        raise UsageError(wrong)
    for source in given:
        if not isinstance(source, (str, os.PathLike, Result)) or source == "":
            raise UsageError(wrong)
        if not isinstance(source, Result) and source != CACHE and not os.path.exists(source):
            raise UsageError(f"warm {os.fspath(source)}: there is no such file; give a journal's path, or {CACHE!r}")
    return partial(_advise, tuple(given)) if given else None


def _advise(
    sources: Sequence[Source], spec: WorkloadSpec, devices: Sequence[DeviceInfo]
) -> tuple[tuple[Advice, ...], list[str]]:
    """Read `sources`. Raises `UsageError` for a source without use here, and `JournalError` for a damaged journal."""
    known: list[Experience] = []
    remarks: list[str] = []
    for source in sources:
        if isinstance(source, Result):
            known.append(experience_of(source, source.journal or "result"))
        elif source == CACHE:
            found = nearest_first(_cached(ResultCache(), spec), spec, [device.name for device in devices])
            known += found[:MOST_CACHED]
            if not found:
                remarks.append("warm cache: the result cache has nothing of this kernel and space")
        else:
            path = os.fspath(source)
            known.append(experience_of(Result.from_events(JournalReader(path), path, replayed=True), path))
    advice, more = advice_of(known, spec)
    return advice, remarks + more


def experience_of(result: Result, source: str) -> Experience:
    """Return the experience in a result. Raises `UsageError` if nothing was measured."""
    header = result.header
    measured = {
        record.key: (record.config, record.latency_ms)
        for record in result.records
        if record.latency_ms is not None and math.isfinite(record.latency_ms) and record.latency_ms > 0
    }
    if header is None or not measured:
        raise UsageError(f"warm {source}: no candidate was measured there, so that nothing can be learnt from it")
    devices = [device.name for device in result.devices]
    return Experience(source, header.workload, header.kernel, header.arguments, devices, measured)


def advice_of(experiences: Sequence[Experience], spec: WorkloadSpec) -> tuple[tuple[Advice, ...], list[str]]:
    """Return the advice for `spec`, an item for each experience, and remarks for the user.

    Raises `UsageError` for experience of another kernel or without any of this space's configurations.
    """
    found, remarks = [], list[str]()
    for each in experiences:
        if not _same_kernel(each.name, each.kernel, spec):
            raise UsageError(
                f"warm {each.source}: it is of another kernel, {each.name!r}, and this one is {spec.name!r}. Give "
                "journals of this kernel, or name both workloads alike if they are the same"
            )
        if (advice := _best_of(each, spec)) is None:
            raise UsageError(
                f"warm {each.source}: none of the {len(each.measured)} configurations that were measured there is in "
                f"this space of {spec.total:,}. Give a journal of a space that shares some"
            )
        if each.kernel and spec.kernel and each.kernel != spec.kernel:
            remarks.append(f"warm {each.source}: the kernel's source, or what it closes over, has changed since")
        found.append(advice)
    return tuple(found), remarks


def _same_kernel(name: str, kernel: str, spec: WorkloadSpec) -> bool:
    """Tell whether experience is of `spec`'s kernel: it has the same source and closure, or the same name.

    The name suffices, because a kernel that closes over its problem has a different closure for each problem.
    """
    return bool(kernel and kernel == spec.kernel) or name == spec.name


def _best_of(each: Experience, spec: WorkloadSpec) -> Advice | None:
    """Return the fastest configurations that `spec` has, too; None without any."""
    here = {config_key(config) for config in spec.configs}
    ranked = sorted(here & each.measured.keys(), key=lambda key: (each.measured[key][1], key))
    return Advice(each.source, tuple(dict(each.measured[key][0]) for key in ranked[:FIRST])) if ranked else None


def nearest_first(experiences: Iterable[Experience], spec: WorkloadSpec, devices: Iterable[str]) -> list[Experience]:
    """Return experience sorted by similarity: first that of these devices, then by `distance`."""
    here = set(devices)

    def place(each: Experience) -> tuple[bool, float, str]:
        return here.isdisjoint(each.devices), distance(each.arguments, spec.arguments), each.source

    return sorted(experiences, key=place)


def _cached(cache: ResultCache, spec: WorkloadSpec) -> list[Experience]:
    """Return the cache's results of this kernel with configurations in its space."""
    entries = [e for e in cache.entries() if _same_kernel(e.parts.kernel, e.parts.source, spec)]
    found = [each for entry in entries if (each := _experience(cache, entry)) is not None]
    return [each for each in found if _best_of(each, spec) is not None]


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
    """Return the result of the same work, if `all_of_it` is wanted and there is one, else the best winner as advice.

    Runs of the same work with other settings of the search, another space, or another problem of the same key, have a
    winner for that, too.
    """
    if (key := result_key(header)) is None:
        return Recalled()
    if all_of_it and (events := cache.events(key, header)):
        first = events[0]
        if isinstance(first, RunStarted) and same_problem(first.arguments, header.arguments):
            return Recalled(events)
    known = [each for entry in cache.entries(work=key.work) if (each := _winner(entry)) is not None]
    best_first = sorted(known, key=lambda each: min(ms for _, ms in each.measured.values()))
    found = (advice for each in best_first if (advice := _best_of(each, spec)) is not None)
    return Recalled(advice=tuple(found)[:1])
