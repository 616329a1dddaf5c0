"""Warm start: try the fastest configurations of earlier runs of the same kernel first. Runs no code of a workload."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from atune.engine.settings import Advise, Kernels, KnownResult, Recall
from atune.errors import CacheMiss, UsageError
from atune.journal.events import RunStarted
from atune.journal.reader import replay
from atune.journal.result import Result
from atune.model.candidate import Advice, Candidate, Config, config_key, distance, printable
from atune.model.device import DeviceInfo
from atune.workers.result_cache import ResultCache, StoredRun
from atune.workers.result_key import plain_dtypes, result_key, same_problem
from atune.workload.workload import WorkloadSpec

WarmSource = str | os.PathLike[str] | Result
Warm = WarmSource | Sequence[WarmSource] | None
Same = dict[str, bool]
"""Remembers whether recorded kernels are the same as the kernels of this run. A key consists of the run's problem, the
record's problem, the configurations and the digests. All runs of a plan share the dictionary."""

CACHE = "cache"
"""The value of `warm` that stands for the user's result cache."""
MOST_CACHED = 8
"""Largest number of results to take from the cache, the nearest first."""
FIRST = 4
"""Largest number of configurations to take from each source."""


def adviser(warm: Warm, nearest: Sequence[Result] = ()) -> Advise | None:
    """Return a function that reads the sources in `warm` when the kernel is known. If there is no source, return None.

    `nearest`: results for other problems. The best configuration of each result comes first. Raises `UsageError`.
    """
    given = (warm,) if isinstance(warm, (str, os.PathLike, Result)) else () if warm is None else warm
    wrong = f"warm: give a journal's path, a TuneResult, {CACHE!r}, or a list of these, got {warm!r}"
    if not isinstance(given, Sequence):
        raise UsageError(wrong)
    for source in given:
        if not isinstance(source, (str, os.PathLike, Result)) or source == "":
            raise UsageError(wrong)
        if not isinstance(source, Result) and source != CACHE and not os.path.exists(source):
            raise UsageError(f"warm {os.fspath(source)}: there is no such file; give a journal's path, or {CACHE!r}")
    return partial(_advise, tuple(given), nearest) if given or nearest else None


def _advise(
    sources: Sequence[WarmSource], nearest: Sequence[Result], spec: WorkloadSpec, devices: Sequence[DeviceInfo]
) -> tuple[tuple[Advice, ...], list[str]]:
    """Return advice and remarks from `sources`. Raises `UsageError` or, for a damaged journal, `JournalError`."""
    here = _keys(spec)
    known = [(each.journal or "result", _first(_measured(each), here)[:1]) for each in nearest]
    advice = [Advice(name, first) for name, first in known if first]
    remarks: list[str] = []
    for source in sources:
        if source == CACHE:
            cached = list(islice(_nearest_cached(spec, here, devices), MOST_CACHED))
            advice += cached
            if not cached:
                remarks.append("warm cache: the result cache has nothing for this kernel and space")
            continue
        if isinstance(source, Result):
            result, name = source, source.journal or "result"
        else:
            result, name = replay(os.fspath(source)), os.fspath(source)
        advice.append(_advice_of(result, name, spec, here))
        if result.header.kernel and spec.kernel and result.header.kernel != spec.kernel:
            remarks.append(f"warm {name}: the kernel's source, or a value that it closes over, has changed since")
    return tuple(advice), remarks


def _advice_of(result: Result, source: str, spec: WorkloadSpec, here: Container[str]) -> Advice:
    """Return a result's advice. Raises `UsageError` for another kernel, or if this space has none of the advice."""
    measured, header = _measured(result), result.header
    if header.workload != spec.name and not (header.kernel and header.kernel == spec.kernel):
        raise UsageError(
            f"warm {source}: this is for the kernel {printable(header.workload)!r}, but this kernel is {spec.name!r}. "
            "Give journals of this kernel, or if the kernels are the same, give both workloads the same name"
        )
    if not (first := _first(measured, here)):
        raise UsageError(
            f"warm {source}: this space of {spec.total:,} has none of the {len(measured)} configurations that were "
            "measured there. Give a journal whose space overlaps with this space"
        )
    return Advice(source, first)


def _measured(result: Result) -> list[tuple[float, Config]]:
    """Return each measured latency, in milliseconds, with its configuration."""
    return [(record.latency_ms, record.config) for record in result.records if record.latency_ms is not None]


def _keys(spec: WorkloadSpec) -> set[str]:
    return {config_key(config) for config in spec.configs}


def _first(measured: Iterable[tuple[float, Config]], here: Container[str]) -> tuple[Config, ...]:
    """Return the fastest configurations, the best first. `here`: the keys of the configurations in this space."""
    known = [(latency_ms, key, config) for latency_ms, config in measured if (key := config_key(config)) in here]
    return tuple(dict(config) for _, _, config in sorted(known, key=lambda each: each[:2])[:FIRST])


def _nearest_cached(spec: WorkloadSpec, here: Container[str], devices: Iterable[DeviceInfo]) -> Iterator[Advice]:
    """Yield advice from cached runs of this kernel, first from runs on these devices, then in order of distance."""
    cache, names = ResultCache(), {device.name for device in devices}

    def place(run: StoredRun) -> tuple[bool, float, str]:
        far = distance(plain_dtypes(run.header.arguments), spec.arguments)
        return names.isdisjoint(run.header.models), far, run.key

    for run in sorted(cache.answers(kernel=spec.name, source=spec.kernel), key=place):
        if (result := cache.result(run)) is not None and (first := _first(_measured(result), here)):
            yield Advice(f"{CACHE} {run.key}", first)


def recaller(cached: bool | None, on_miss: str, *, unless_asked: bool) -> Recall | None:
    """Return a function that looks up a run's work in the result cache. If `cached` is False, return None.

    `unless_asked`: whether to look up the work if `cached` is None. Raises `UsageError` for ``on_miss="error"`` without
    `cached`.
    """
    if on_miss == "error" and not cached:
        raise UsageError("on_miss='error' (--on-miss error) needs cached=True (--cached): give both")
    looks = unless_asked if cached is None else cached
    return partial(_recall, ResultCache(), on_miss if cached else "", {}) if looks else None


def _recall(
    cache: ResultCache, on_miss: str, same: Same, header: RunStarted, spec: WorkloadSpec, kernels: Kernels, journal: str
) -> KnownResult | None:
    """Return the cached result of this run's work.

    If there is no result, or `on_miss` is empty, return a winner as advice. A cached result is used only if its winner
    still has the same kernel. Raises `CacheMiss` if there is no result and `on_miss` is ``error``. Returns None if
    another run is doing the work. Otherwise, other runs will wait for the run of `journal`. The advice may come from a
    run with another search or another space, or of another problem with the same key.
    """
    if (key := result_key(header)) is None:
        return KnownResult()

    def still(arguments: Any, recorded: Sequence[tuple[Config, str]]) -> bool:
        if (question := repr((header.arguments, arguments, recorded))) not in same:
            now = kernels(Candidate(i, "", config) for i, (config, _) in enumerate(recorded))
            digests = dict(enumerate(digest for _, digest in recorded))
            same[question] = same_problem(arguments, header.arguments) and now == digests
        return same[question]

    run = cache.find(key, header, still) if on_miss else None
    if run is not None and (events := cache.events(run, header)):
        return KnownResult(events, whole=run.path)
    if on_miss == "error":
        what = f"the result cache has no result for this version of {spec.name}"
        raise CacheMiss(f"{what}: drop on_miss='error' (--on-miss error) to tune it")
    if on_miss and journal and cache.begin(header, still, own=journal) is None:
        return None
    best_first = sorted(cache.answers(work=key.work), key=lambda run: (run.found.latency_ms or math.inf, run.key))
    here = _keys(spec) if best_first else ()
    winners = ((run.key, _first([(0.0, run.config or {})], here)) for run in best_first)
    return KnownResult(advice=tuple(islice((Advice(f"{CACHE} {name}", first) for name, first in winners if first), 1)))
