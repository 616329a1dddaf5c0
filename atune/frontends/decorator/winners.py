"""The winners of a kernel that tunes itself: known in memory, in the result cache or shipped, or tuned now."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from atune.errors import CacheMiss, UsageError, warn_caller
from atune.frontends.api.blocking import run_blocking
from atune.frontends.api.cached_tune import CachedWork, tune_work
from atune.frontends.api.tuner import tune_apart
from atune.frontends.decorator.call import Call
from atune.frontends.decorator.options import OnMiss
from atune.journal.result import TuneResult
from atune.model.candidate import Config, printable
from atune.workers.storage.result_key import CacheEntry, read_exported, same_problem


class Winner(msgspec.Struct, frozen=True):
    """The configuration for a key, and its origin.

    `result`: the whole tuning, if it ran on this machine. `tuned_for`: the problem that was tuned.
    """

    config: Config
    source: Literal["tuned", "cache", "shipped", "default"]
    latency_ms: float | None = None
    reference_ms: float | None = None
    result: TuneResult | None = None
    tuned_for: Any = None


WAIT_S = 0.02
"""Seconds between two looks whether another thread or task has tuned what is needed."""


class _Flight:
    """A tuning under way in `thread`. `done` gets its winner; None if it was cancelled, and a waiter may take over."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done: concurrent.futures.Future[Winner | None] = concurrent.futures.Future()


class Winners:
    """Finds the winner for a call's key, and remembers it. One thread or task tunes a key; the others wait for it."""

    def __init__(self, name: str, tuned: Callable[[bool], None]) -> None:
        """`name`: the kernel's. `tuned` is called after each tuning, with whether it was asked for again."""
        self._name, self._tuned = name, tuned
        self.known: dict[str, Winner] = {}
        """The winners in memory, by key as text."""
        self._running: dict[str, _Flight] = {}
        self._lock = threading.Lock()

    def forget(self, key: str | None = None) -> None:
        """Forget the winner of `key`, a key as text, or all winners in memory."""
        with self._lock:
            for one in [*self.known] if key is None else [key]:
                self.known.pop(one, None)

    def find(self, call: Call, on_miss: OnMiss | None = None) -> Winner:
        """Return the configuration to use; blocking. Where none is known, `on_miss` decides, else the options.

        Raises `UsageError` where a task of this very thread tunes it: waiting would block that task.
        """
        on_miss = on_miss or call.options.on_miss
        found = self.known.get(call.key_text) or self._stored(call)
        if found is not None:
            return found
        if on_miss == "error":
            raise CacheMiss(f"{_missing(call)}. Tune it, or import results (atune cache import)")
        if on_miss == "default":
            if call.options.shipped:
                warn_caller(f"{_missing(call)}. The default configuration is used and may be slow", RuntimeWarning)
            return Winner(_default(call), "default")
        flight = self._running.get(call.key_text)
        if flight is not None and flight.thread == threading.get_ident():
            raise UsageError(
                f"a task of this thread's event loop is tuning {self._name}, and waiting here would block that "
                "task. Before the call, await tune_async(…) with the same arguments"
            )
        winner, _ = run_blocking(self._once, call, False)
        return winner

    async def tuned(self, call: Call, refresh: bool = False) -> TuneResult:
        """Return the whole tuning of a call: known, of another task or process, or new."""
        while True:
            known = self.known.get(call.key_text)
            if refresh or (known is not None and known.result is None):  # a configuration without its tuning
                self.forget(call.key_text)
            winner, mine = await self._once(call, refresh)
            if winner.result is not None:
                return winner.result if mine else _hit(winner.result)
            refresh = False

    async def _once(self, call: Call, refresh: bool) -> tuple[Winner, bool]:
        """Return the winner of a call's key: of who tunes it now, known, or tuned here; and whether it was here."""
        while True:
            with self._lock:
                flight, known = self._running.get(call.key_text), self.known.get(call.key_text)
                if flight is None and known is not None:
                    return known, False
                if mine := flight is None:
                    flight = self._running[call.key_text] = _Flight()
            if mine:
                return await self._lead(flight, call, refresh), True
            while not flight.done.done():
                await anyio.sleep(WAIT_S)
            if (found := flight.done.result()) is not None:
                return found, False

    async def _lead(self, flight: _Flight, call: Call, refresh: bool) -> Winner:
        """Tune, and end the waiting of all others, with any outcome."""
        winner: Winner | None = None
        raised: Exception | None = None
        try:
            winner = await self._tune(call, refresh)
            return winner
        except Exception as error:
            raised = error
            raise
        finally:
            with self._lock:
                self._running.pop(call.key_text, None)
                if winner is not None:
                    self.known[call.key_text] = winner
            if raised is not None:
                flight.done.set_exception(raised)
            else:
                flight.done.set_result(winner)

    def _stored(self, call: Call) -> Winner | None:
        """Look for a result in the result cache and in the shipped files, and remember it."""
        found: Winner | None = None
        cache = call.options.cache
        if cache is not None and (result := cache.find(call.work.key, call.work.header)) is not None:
            found = winner_of(result)
        elif cache is not None and (entry := cache.find_entry(call.work.key)) and call.work.holds(entry.config):
            found = _winner_in(entry, "cache")
        elif (entry := find_shipped(call.options.shipped, call.work)) is not None:
            found = _winner_in(entry, "shipped")
        if found is None:
            return None
        with self._lock:
            return self.known.setdefault(call.key_text, found)

    async def _tune(self, call: Call, refresh: bool) -> Winner:
        work, cache = await anyio.to_thread.run_sync(lambda: call.work), call.options.cache
        try:
            if cache is None:
                result = await tune_apart(work.workload, **work.options)
            else:
                result = await tune_work(work, cache, concurrent=call.options.concurrent, refresh=refresh)
        finally:
            if (discard := getattr(work.workload.inputs, "discard", None)) is not None:
                discard()
        self._tuned(refresh)
        return winner_of(result)


def winner_of(result: TuneResult) -> Winner:
    """Return the winner of a tuning."""
    source: Literal["cache", "tuned"] = "cache" if result.cache_hit else "tuned"
    tuned_for = None if result.header is None else result.header.arguments
    return Winner(result.best_config, source, result.latency_ms, result.reference_ms, result, tuned_for)


def _winner_in(entry: CacheEntry, source: Literal["cache", "shipped"]) -> Winner:
    times = entry.latency_ms, entry.reference_ms
    return Winner(entry.config, source, *times, tuned_for=entry.parts.tuned_for)


def _hit(result: TuneResult) -> TuneResult:
    """Return `result` marked as found without tuning."""
    found = copy.copy(result)
    found.cache_hit = True
    return found


def _missing(call: Call) -> str:
    return f"{call.work.key.kernel}: no result is known for {printable(call.key_text)} on {call.work.key.device}"


def _default(call: Call) -> Config:
    chosen = call.options.workload.get("default")
    if chosen is not None:
        return dict(chosen)
    owner = call.owner
    config = {n: p.default for n, p in owner.signature.parameters.items() if n in call.tunables}
    if lacking := sorted(n for n, value in config.items() if value is inspect.Parameter.empty):
        raise UsageError(f"{owner.__name__}: no default configuration: {lacking[0]!r} has no default; give default=")
    return config


def find_shipped(paths: Sequence[str], work: CachedWork) -> CacheEntry | None:
    """Return a result of the same source, problem, device and target as `work`, with a configuration of its space.

    `paths`: files that ``atune cache export`` wrote. Results of the same versions come first, and then the latest.
    Raises `UsageError` for a file that cannot be read or that holds no exported results.
    """
    if not paths:
        return None
    key = work.key
    fitting = [
        entry
        for path in paths
        for entry in _entries(path, _changed(path))
        if entry.parts.fingerprint == key.fingerprint
        and all(getattr(entry.parts, name) == getattr(key, name) for name in ("device", "target"))
        and same_problem(entry.parts.problem, key.problem)
        and work.holds(entry.config)
    ]
    return max(fitting, key=lambda entry: (entry.parts.versions == key.versions, entry.created), default=None)


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError as error:
        raise UsageError(f"shipped: cannot read {path}: {error.strerror or error}") from error


@functools.cache
def _entries(path: str, changed: int) -> list[CacheEntry]:
    """Return the results in a file, which is read again once it has changed."""
    try:
        return read_exported(Path(path).read_bytes())
    except (OSError, UsageError) as error:
        raise UsageError(f"shipped: {path}: {error}") from error
