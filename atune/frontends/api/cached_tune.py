"""Tuning through the result cache: a known result is returned at once, and a new one is stored."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from atune.engine.search.survey_columns import figures_for
from atune.errors import JournalError, NoWinner
from atune.frontends.api.blocking import no_winner_message
from atune.frontends.api.default_journal import RUNNING
from atune.frontends.api.options import completed, shows_progress
from atune.frontends.api.tuner import discover, engine_settings, tune_apart
from atune.journal.events import CandidateAliased, CandidateLowered, CandidateProposed, Event, RunStarted
from atune.journal.result import Result, TuneResult
from atune.journal.writer import line_of
from atune.model.candidate import BASELINE, Config, config_key
from atune.version import installed_versions
from atune.workers.processes.server import refuse_in_worker
from atune.workers.storage.result_cache import Known, ResultCache
from atune.workers.storage.result_key import ResultKey, result_key
from atune.workers.system.locks import TuningLock
from atune.workload.workload import Workload, WorkloadSpec, describe

Concurrent = Literal["wait", "tune"]
"""What to do while another process tunes the same work: wait for its result, or tune at the same time."""
STALE_S = 14 * 86400.0
"""Age at which the journal of an interrupted tuning is removed if nobody resumed it."""
POLL_S = 0.1
"""Seconds between two checks whether the other process has finished."""


class CachedWork:
    """A workload with its tuning options: its cache key, and the parts of that key.

    `options`: as for `atune.tune`. Raises `UsageError` as `tune` does.
    """

    def __init__(self, workload: Workload, **options: Any) -> None:
        given = completed("tune", options)
        self.workload, self.options = workload, options
        self.settings = engine_settings(given)
        self.spec: WorkloadSpec = describe(workload, seed=self.settings.seed)
        self.target, self.devices = discover(given["target"], given["devices"])
        self.versions = installed_versions()

    @cached_property
    def key(self) -> ResultKey:
        key = result_key(self.header)
        assert key is not None, "this atune records all of a key's parts"
        return key

    @cached_property
    def configs(self) -> dict[int, Config]:
        """The configurations that a run tries, by index: the baseline, where there is one, and those of the space."""
        baseline = {} if self.spec.baseline is None else {BASELINE: self.spec.baseline}
        return {**baseline, **dict(enumerate(self.spec.configs))}

    def history(self, known: Mapping[str, Known], now: float) -> bytes:
        """Return the text of a journal in which a run of this work has already recorded `known`."""
        header = msgspec.structs.replace(self.header, time=now)
        return b"".join(map(line_of, history(header, self.configs, known)))

    @cached_property
    def header(self) -> RunStarted:
        """How a run of this work starts, without the time."""
        strategy = self.settings.strategy_in(self.spec, None, figures_for(self.target, self.devices))
        fields = self.settings.header(self.spec, self.target, self.devices, self.versions, strategy)
        return RunStarted(seq=0, time=0.0, mono=0.0, **fields)


def history(header: RunStarted, configs: Mapping[int, Config], known: Mapping[str, Known]) -> list[Event]:
    """Return the journal of a run that has recorded `known` and has yet to try the rest of `configs`, by index.

    A candidate is aliased to the first one with the same code, as in the run that measured it.
    """
    events: list[Event] = [header]
    codes: dict[str, int] = {}

    def add(kind: type[Event], **fields: Any) -> None:
        events.append(kind(seq=len(events), time=header.time, mono=0.0, **fields))

    for index, config in configs.items():
        key = config_key(config)
        if (found := known.get(key)) is None:
            continue
        add(CandidateProposed, index=index, key=key, config=config)
        if found.code_key:
            add(CandidateLowered, index=index, code_key=found.code_key, facts=found.facts, seconds=0.0)
            first = codes.setdefault(found.code_key, index)
            if first != index:
                add(CandidateAliased, index=index, same_as=first)
                continue
        again = {"index": index, "seq": len(events), "time": header.time, "mono": 0.0}
        events.append(msgspec.structs.replace(found.outcome, **again))
    return events


async def tune_work(
    work: CachedWork, cache: ResultCache, *, concurrent: Concurrent = "wait", refresh: bool = False
) -> TuneResult:
    """Return the result of this work in `cache`, with `cache_hit` set. Without one, tune and store the result.

    Configurations that an earlier run of the same work measured are measured again only in the final benchmark. The
    earlier run may have had another space. After an interrupted tuning, the next call resumes it. If the work has a
    journal of its own, nothing is reused from earlier runs.

    `concurrent`: what to do while another process tunes the same work. `refresh`: tune even if the result is known.

    Raises what `tune` raises. Cancelling it keeps the measurements for the next call.
    """
    key, header = work.key, work.header
    if not refresh and (found := await anyio.to_thread.run_sync(cache.find, key, header)) is not None:
        return found
    refuse_in_worker()
    lock = TuningLock(cache.folder / RUNNING / f"{key.text}.lock")
    mine = _acquire(lock)
    while mine is False and concurrent == "wait":
        await anyio.sleep(POLL_S)
        mine = _acquire(lock)
    try:
        if mine and not refresh and (found := await anyio.to_thread.run_sync(cache.find, key, header)) is not None:
            return found  # another process finished tuning before the lock was free
        own = work.options.get("journal") is not None
        journal = cache.folder / RUNNING / f"{key.text}.jsonl" if mine and not own else None
        return await _tune_and_keep(work, key, cache, journal, refresh)
    finally:
        lock.release()


def _acquire(lock: TuningLock) -> bool | None:
    """Tell whether this process holds the lock. Returns None if the folder is not writable and nobody can hold it."""
    try:
        return lock.acquire()
    except OSError:
        return None


async def _tune_and_keep(
    work: CachedWork, key: ResultKey, cache: ResultCache, journal: Path | None, refresh: bool
) -> TuneResult:
    events: list[Event] = []
    listener: Callable[[Event], None] | None = work.options.get("on_event")

    def listen(event: Event) -> None:
        events.append(event)
        if listener is not None:
            listener(event)

    options = {**work.options, "on_event": listen, "progress": shows_progress(work.options)}
    if journal is not None:
        await anyio.to_thread.run_sync(_begin, work, cache, journal, refresh)
        options["journal"] = journal
    try:
        result = await _tune_again_if_useless(work, options, journal, events)
    except NoWinner as error:
        if journal is None:
            raise
        _drop(journal, error.result)  # the run has ended; the next call retries failures that may pass
        raise NoWinner(no_winner_message(error.result), error.result) from None  # the other message names the journal
    finally:
        if events:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(cache.put, key, list(events))
    if journal is not None:
        _drop(journal, result)
    return result


async def _tune_again_if_useless(
    work: CachedWork, options: dict[str, Any], journal: Path | None, events: list[Event]
) -> TuneResult:
    """Tune, and once more without `journal`, the cache's own, where that is damaged or of work that looks the same."""
    try:
        return await tune_apart(work.workload, taken_up=journal is not None, **options)
    except JournalError:
        if journal is None:
            raise
        events.clear()
        journal.unlink(missing_ok=True)
        return await tune_apart(work.workload, taken_up=True, **options)


def _drop(journal: Path, result: Result) -> None:
    """Remove the cache's own journal of a run that ended, which `result` then names no more."""
    result.journal = None
    journal.unlink(missing_ok=True)


def _begin(work: CachedWork, cache: ResultCache, journal: Path, refresh: bool) -> None:
    """Prepare the journal for the run: the one of an interrupted run, or a new one with the known outcomes."""
    for left in journal.parent.glob("*.jsonl"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - STALE_S:
                left.unlink()
    if refresh:
        journal.unlink(missing_ok=True)
        return
    if journal.exists():
        return
    known = cache.known(work.key, work.configs.values())
    if known:
        part = journal.with_suffix(".part")
        part.write_bytes(work.history(known, time.time()))
        os.replace(part, journal)
