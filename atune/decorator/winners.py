"""The winners of a kernel under `@atune.autotune`: known in memory, in the result cache or shipped, or tuned now."""

from __future__ import annotations

import copy
import inspect
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from atune.api.blocking import run_blocking
from atune.api.cached_tune import Work, tune_work
from atune.api.tuner import tune
from atune.decorator.call import Call, OnMiss, Options
from atune.decorator.files import tune_recorded, write_known
from atune.decorator.miss import describe_miss, warn_of_default
from atune.decorator.shipped import find_shipped
from atune.decorator.tunings import Tunings
from atune.errors import CacheMiss, UsageError
from atune.journal.result import TuneResult
from atune.model.candidate import Config

WAIT_S = 0.02
"""Seconds between two checks of a task whether another has finished the tuning that it needs."""


class Winner(msgspec.Struct, frozen=True):
    """The configuration for a key, and its origin.

    `result`: the whole tuning, if it ran on this machine.
    """

    config: Config
    source: Literal["tuned", "cache", "shipped", "default"]
    latency_ms: float | None = None
    reference_ms: float | None = None
    result: TuneResult | None = None


class Winners:
    """Finds the winner for a call's key, and remembers it. One thread or task tunes a key; the others wait for it."""

    def __init__(self, name: str, signature: inspect.Signature, options: Options) -> None:
        """`name`, `signature`: the kernel's."""
        self.name, self.signature, self.options = name, signature, options
        self._tunings: Tunings[Winner] = Tunings()

    @property
    def known(self) -> dict[str, Winner]:
        """The winners in memory, by key as text."""
        return self._tunings.known

    def forget(self, key: str | None = None) -> None:
        """Forget the winner of `key`, a key as text, or all winners in memory."""
        self._tunings.forget(key)

    def find(self, call: Call, on_miss: OnMiss | None = None) -> Winner:
        """Return the configuration to use; blocking. Where none is known, `on_miss` decides, else the options."""
        on_miss = on_miss or self.options.on_miss
        while True:
            known = self._tunings.known.get(call.key_text)
            if known is None:
                known = self._known(call)
            if known is not None:
                return known
            if on_miss == "error":
                missed = describe_miss(call.work, call.key_text, self.options.cache, self.options.shipped)
                raise CacheMiss(f"{missed}\nTune it, or import results (atune cache import)")
            if on_miss == "default":
                warn_of_default(call.work, call.key_text, self.options.cache, self.options.shipped)
                return Winner(self._default(call), "default")
            tuning, mine = self._tunings.claim(call.key_text)
            if tuning is None:
                continue
            if mine:
                with self._tunings.leading(call.key_text, tuning) as tell:
                    winner = winner_of(run_blocking(self._tune, call, False))
                    tell(winner)
                return winner
            if tuning.is_this_threads:
                raise UsageError(
                    f"a task of this thread's event loop is tuning {self.name}, and waiting here would block that "
                    "task. Before the call, await tune_async(…) with the same arguments"
                )
            found = tuning.done.result()
            if found is not None:
                return found

    def _known(self, call: Call) -> Winner | None:
        """Look for a result in the result cache and in the shipped files, and remember it."""
        found: Winner | None = None
        cache = self.options.cache
        if cache is not None and (result := call.work.known_result(cache)) is not None:
            found = winner_of(result)
            if self.options.files:
                write_known(self.options.files, call.work, cache)
        elif cache is not None and (entry := call.work.known_entry(cache)) is not None:
            found = Winner(entry.config, "cache", entry.latency_ms, entry.reference_ms)
        elif (entry := find_shipped(self.options.shipped, call.work)) is not None:
            found = Winner(entry.config, "shipped", entry.latency_ms, entry.reference_ms)
        return None if found is None else self._tunings.keep(call.key_text, found)

    def _default(self, call: Call) -> Config:
        chosen = self.options.workload.get("default")
        if chosen is not None:
            return dict(chosen)
        config = {n: p.default for n, p in self.signature.parameters.items() if n in call.tunables}
        if lacking := sorted(n for n, value in config.items() if value is inspect.Parameter.empty):
            raise UsageError(f"{self.name}: no default configuration: {lacking[0]!r} has no default; give default=")
        return config

    async def tuned(self, call: Call, refresh: bool) -> TuneResult:
        """Return the whole tuning of a call: known, of another task or process, or new."""
        known = self._tunings.known.get(call.key_text)
        if refresh or (known is not None and known.result is None):  # a configuration without its tuning
            self._tunings.forget(call.key_text)
        while True:
            tuning, mine = self._tunings.claim(call.key_text)
            if tuning is None:
                known = self._tunings.known.get(call.key_text)
                if known is not None and known.result is not None:
                    return _hit(known.result)
                self._tunings.forget(call.key_text)
                continue
            if mine:
                with self._tunings.leading(call.key_text, tuning) as tell:
                    result = await self._tune(call, refresh)
                    tell(winner_of(result))
                return result
            while not tuning.done.done():
                await anyio.sleep(WAIT_S)
            found = tuning.done.result()
            if found is not None and found.result is not None:
                return _hit(found.result)

    async def _tune(self, call: Call, refresh: bool) -> TuneResult:
        work, cache = await anyio.to_thread.run_sync(lambda: call.work), self.options.cache
        try:
            result = await tune_recorded(
                self.options.files,
                work,
                cache,
                lambda: self._tune_work(work, refresh),
                concurrent=self.options.concurrent,
                refresh=refresh,
            )
        finally:
            if self.options.inputs == "call":
                work.workload.inputs.discard()  # type: ignore[union-attr]
        call.owner.tuned_again(refresh)
        return result

    async def _tune_work(self, work: Work, refresh: bool) -> TuneResult:
        if self.options.cache is None:
            return await tune(work.workload, **work.options)
        return await tune_work(work, self.options.cache, concurrent=self.options.concurrent, refresh=refresh)


def winner_of(result: TuneResult) -> Winner:
    """Return the winner of a tuning that has one."""
    assert result.best_config is not None
    source: Literal["cache", "tuned"] = "cache" if result.cache_hit else "tuned"
    return Winner(result.best_config, source, result.latency_ms, result.reference_ms, result)


def _hit(result: TuneResult) -> TuneResult:
    """Return `result` marked as found without tuning."""
    found = copy.copy(result)
    found.cache_hit = True
    return found
