"""Find the winners of a self-tuning kernel: in memory, in the result cache, in shipped files, or by tuning now."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from atune.errors import AtuneError, CacheMiss, CompileFailed, SpaceError, UsageError, in_one_line, warn_caller
from atune.frontends.blocking import run_blocking
from atune.frontends.cached_tune import CachedWork, tune_work
from atune.frontends.call import TunedCall
from atune.frontends.decorator_options import OnMiss
from atune.frontends.pick import NO_FIGURES, picked
from atune.frontends.tuner import tune_planned
from atune.journal.result import TuneResult
from atune.model.artifact import Artifact, Roles
from atune.model.candidate import BASELINE, Config, config_key, describe_config, printable
from atune.model.folders import loadable, read_file
from atune.reporting.summary import why_unchecked
from atune.workers.result_key import CacheEntry, read_exported, same_problem
from atune.workers.server import in_worker
from atune.workload.workload import Workload


class Winner(msgspec.Struct, frozen=True):
    """The configuration for a key, and the origin of the configuration.

    `tuned_for`: the problem that was tuned. `roles`: the roles of the kernel's parameters, if the tuning ran on this
    machine. `library`: a function that returns the measured library, or None if the library is gone. Only the best
    configuration of a tuning has this function. `read`: a function that returns the result of the whole tuning.
    """

    config: Config
    source: Literal["tuned", "cache", "shipped", "picked", "default"]
    latency_ms: float | None = None
    reference_ms: float | None = None
    tuned_for: Any = None
    roles: Roles | None = None
    library: Callable[[], Artifact | None] | None = None
    read: Callable[[], TuneResult | None] = lambda: None

    @property
    def result(self) -> TuneResult | None:
        """The result of the whole tuning, or None if the tuning ran on another machine or the journal is damaged."""
        return self.read()

    def standing(self) -> Iterator[Winner]:
        """Yield this winner, then every configuration that its tuning measured, the fastest first."""
        yield self
        records = () if self.result is None else self.result.records
        measured = [(r.latency_ms, r.index, r.config) for r in records if r.latency_ms is not None]
        for latency_ms, _, config in sorted(measured, key=lambda each: each[:2]):
            yield msgspec.structs.replace(self, config=dict(config), latency_ms=latency_ms, library=None)


TRIES = 3
"""Number of configurations of a tuning that may turn out to be unusable before the problem is tuned again."""
WAIT_S = 0.02
"""Seconds between checks whether another thread or task has finished tuning a key."""


class Winners:
    """Finds the winner for a call's key, and remembers it. One thread or task tunes a key while the others wait.

    If the space refuses the winner for the call's sizes, or the winner is unusable, the next best winner is used.
    """

    def __init__(self, name: str, tuned: Callable[[], None]) -> None:
        """`name`: the kernel's name. `tuned`: a function to call after a tuning that replaces winners."""
        self._name, self._tuned = name, tuned
        self.known: dict[str, dict[str, Winner]] = {}
        """The winners in memory, by the text of the key, and then by the text of the problem that was tuned."""
        self.unusable: dict[str, dict[str, Exception]] = {}
        """The errors of unusable configurations, by the text of the problem, and then by the configuration's key."""
        self._picks: dict[str, tuple[Config, ...]] = {}
        """The prior's choices for each problem's text, the best first; an empty tuple if the prior has no estimates."""
        self._picking = threading.Lock()
        """A lock that a thread holds while the thread asks the prior."""
        self._settled: set[str] = set()
        """The texts of problems that this program tuned and does not tune again, even if no winner can be used."""
        self._running: dict[str, tuple[int, object]] = {}
        """For each key that is being tuned, the thread that tunes the key, and a token for the task that tunes it."""

    def forget(self, meant: Callable[[str], bool]) -> None:
        """Forget each winner if `meant` returns true for the text of its key. Forget all errors of configurations."""
        for key in filter(meant, [*self.known]):
            self.known.pop(key, None)
        self.unusable.clear()
        self._settled.clear()

    def find(self, call: TunedCall, on_miss: OnMiss | None = None) -> Winner:
        """Return the winner to use. Blocks. If no winner is known, `on_miss` or the decorator's option decides.

        Workers never tune. If a reference calls a tuned kernel in a worker, the kernel uses the default configuration.

        Raises `UsageError` if a task of this thread is tuning the key, because waiting would block the task. If this
        program's tuning found no usable configuration, raises the error of a configuration, or `SpaceError`.
        """
        on_miss = on_miss or call.options.on_miss
        if on_miss in ("tune", "pick") and in_worker():
            on_miss = "default"
        if (winner := self.serving(call) or self._stored(call)) is not None:
            return winner
        if on_miss == "error":
            raise CacheMiss(f"{self._missing(call)}. Tune it, or ship a result (shipped=)")
        known = self.known.get(call.key_text, {})
        if on_miss == "pick" and (choice := self._picked(call)) is not None:
            return choice
        if on_miss in ("default", "pick"):
            spec = call.work.spec
            unlisted = call.workload.like_tilelang and spec.default in (None, BASELINE)
            if (config := spec.configs[0] if unlisted else spec.default_config) is None:
                raise UsageError(f"{self._name}: no default configuration: {spec.no_default}; give default=")
            default = Winner(dict(config), "default")
            refused = "" if call.launch.admits(default.config) else ", which where= refuses,"
            if call.options.shipped or known or refused:
                used = f"The default configuration{refused} is used and may be slow"
                warn_caller(f"{self._missing(call)}. {used}", RuntimeWarning)
            return default
        if known and call.launch is not call:
            return self.find(call.launch, on_miss)  # the tuning on tune_on's arguments has no winner for the call
        if call.problem_text in self._settled:
            raise next(iter(self._failures(call).values()), SpaceError(self._missing(call)))
        if self._running.get(call.key_text, (0,))[0] == threading.get_ident():
            raise UsageError(
                f"a task of this thread's event loop is tuning {self._name}, and waiting here would block that "
                "task. Before the call, await tune_async(…) with the same arguments"
            )
        before = len(self._settled)
        winner, mine = run_blocking(self._once, call, call.problem_text in known, False)
        expected = call.work.settings.benchmark.check and not call.options.like_tilelang  # tilelang's tuner is silent
        if mine and not before and expected and winner.result and (why := why_unchecked(winner.result)):
            warn_caller(f"{self._name}: the outputs were not checked: {why}", RuntimeWarning)
        return self.find(call, on_miss)

    def _picked(self, call: TunedCall) -> Winner | None:
        """Return the first usable choice of the prior, or None if no choice is usable."""
        with self._picking:
            if call.problem_text not in self._picks:
                self._picks[call.problem_text] = self._ask_prior(call)
        failures = self._failures(call)
        usable = (config for config in self._picks[call.problem_text] if config_key(config) not in failures)
        return next((Winner(config, "picked") for config in usable if call.launch.admits(config)), None)

    def _ask_prior(self, call: TunedCall) -> tuple[Config, ...]:
        why = NO_FIGURES
        if call.work.target.kind == "cuda":
            default = call.options.workload.get("default")
            bare = Workload(call.kernel, call.space, arguments=call.written, default=default)  # sends no tensors
            picks = run_blocking(picked, bare, TRIES, call.work.devices[0])
            if not (why := picks.why):
                return tuple(choice.config for choice in picks.choices)
        listed = " if it is listed, else the first configuration" * call.workload.like_tilelang
        warn_caller(f"{self._name}: {why}{listed}, and may be slow", RuntimeWarning)
        return ()

    def _failures(self, call: TunedCall) -> dict[str, Exception]:
        return self.unusable.setdefault(call.launch.problem_text, {})

    def serving(self, call: TunedCall) -> Winner | None:
        """Return a winner in memory that serves a call, preferably a winner that was tuned for the call's problem."""
        own = call.launch.problem_text
        known = sorted([*self.known.get(call.key_text, {}).items()], key=lambda each: each[0] != own)
        return next((usable for _, winner in known if (usable := self._usable(winner, call)) is not None), None)

    def _usable(self, winner: Winner, call: TunedCall) -> Winner | None:
        """Return and remember the first of `winner.standing()` that serves a call; None if no configuration serves."""
        failures = self._failures(call)
        for candidate in winner.standing():
            if config_key(candidate.config) not in failures and call.launch.admits(candidate.config):
                if candidate is not winner:
                    self.known.setdefault(call.key_text, {})[call.launch.problem_text] = candidate
                return candidate
            if len(failures) >= TRIES:
                break
        return None

    def pass_over(self, call: TunedCall, winner: Winner, error: Exception) -> None:
        """Remember that a call cannot use a winner, and warn once. If the winner is the default, raise `error`."""
        if winner.source == "default":
            raise error
        if self._failures(call).setdefault(config_key(winner.config), error) is not error:
            return
        cause = error.failures[0].message if isinstance(error, CompileFailed) else in_one_line(error)
        what = f"{self._name}: the winner {describe_config(winner.config)} cannot be used for {_problem(call)}"
        warn_caller(f"{what}: {cause}. atune tries the next best winner, if there is one", RuntimeWarning)

    def _missing(self, call: TunedCall) -> str:
        key, text = call.work.key, printable(call.key_text)
        for error in self._failures(call).values():
            return f"{key.kernel}: no result for {text} can be used: {in_one_line(error)}"
        serves = f" serves {_problem(call)}" if call.key_text in self.known else " is known"
        return f"{key.kernel}: no result{serves} for {text} on {key.device}"

    async def tuned(self, call: TunedCall, refresh: bool = False) -> TuneResult:
        """Return the result of a call's tuning. If no result is known, wait for a running tuning, or tune."""
        if refresh:
            self.forget(call.key_text.__eq__)
        winner, mine = await self._once(call, refresh, True)
        result = await anyio.to_thread.run_sync(lambda: winner.result)  # in a thread, because it may read a journal
        if result is None:  # the journal has been damaged since
            self.forget(call.key_text.__eq__)
            return await self.tuned(call, refresh)
        if not mine:
            result = copy.copy(result)
            result.cache_hit = True
        return result

    async def _once(self, call: TunedCall, refresh: bool, whole: bool) -> tuple[Winner, bool]:
        """Return the winner of a call's key, and whether this task tuned the key. Waits if another task tunes the key.

        `whole`: whether to return a known winner only if it is the best configuration of its tuning.
        """
        mine = threading.get_ident(), object()
        while self._running.get(call.key_text) is not mine:
            if call.key_text in self._running:
                await anyio.sleep(WAIT_S)
            elif (known := await self._look(call, whole)) is not None:
                return known, False
            else:
                self._running.setdefault(call.key_text, mine)  # atomic, so that only one of several threads begins
        try:
            if (known := await self._look(call, whole)) is not None:  # another task finished in the meantime
                return known, False
            winner = await self._tune(call, refresh)
            self.known.setdefault(call.key_text, {})[call.problem_text] = winner
            if refresh or call.options.on_miss != "tune":
                self._tuned()
            if winner.source == "tuned":
                self._settled.add(call.problem_text)
            return winner, True
        except Exception:
            if self._failures(call):
                self._settled.add(call.problem_text)
            raise
        finally:
            self._running.pop(call.key_text)

    async def _look(self, call: TunedCall, whole: bool) -> Winner | None:
        """Return the winner in memory that serves a call. Searches in a thread, because constraints may be slow."""
        winner = await anyio.to_thread.run_sync(self.serving, call, abandon_on_cancel=True)
        return None if winner is None or (whole and winner.library is None) else winner

    def _stored(self, call: TunedCall) -> Winner | None:
        """Return a winner that serves a call from the result cache or the shipped files, and remember it."""
        for winner in self._kept(call):
            usable = self._usable(winner, call)
            if usable is winner or (usable is None and winner.library is not None):
                self.known.setdefault(call.key_text, {})[call.problem_text] = winner
            if usable is not None:
                return usable
        return None

    def _kept(self, call: TunedCall) -> Iterator[Winner]:
        cache, work, header = call.options.cache, call.work, call.work.header
        run = None if cache is None else cache.find(work.key, header, work.still)
        if cache is not None and run is not None and run.entry is not None:
            library, result = partial(_library, run.library), partial(cache.result, run, header)
            winner = _winner_in(run.entry, "cache")
            yield msgspec.structs.replace(winner, roles=run.roles, library=library, read=functools.cache(result))
        for entry in find_shipped(call.options.shipped, call.work):
            yield _winner_in(entry, "shipped")

    async def _tune(self, call: TunedCall, refresh: bool) -> Winner:
        work, cache = await anyio.to_thread.run_sync(lambda: call.work, abandon_on_cancel=True), call.options.cache
        try:
            if cache is None:
                made = await tune_planned(work.workload, work.plan.with_settings(cached=False))
            else:
                made = await tune_work(work, cache, refresh=refresh)
        finally:
            if (discard := getattr(work.workload.inputs, "discard", None)) is not None:
                discard()
        source: Literal["cache", "tuned"] = "cache" if made.cache_hit else "tuned"
        facts = made.best_config, source, made.latency_ms, made.reference_ms, made.header.arguments
        return Winner(*facts, made.roles, lambda: made.artifact, lambda: made)


def _library(kept: Artifact | None) -> Artifact | None:
    with suppress(AtuneError):
        return loadable(kept, replayed=True)
    return None


def _winner_in(entry: CacheEntry, source: Literal["cache", "shipped"]) -> Winner:
    times = entry.latency_ms, entry.reference_ms
    return Winner(entry.config, source, *times, tuned_for=entry.parts.tuned_for)


def _problem(call: TunedCall) -> str:
    return printable(describe_config(call.launch.problem)) or "this call"


def find_shipped(paths: Sequence[str], work: CachedWork) -> list[CacheEntry]:
    """Return the shipped results for the source, problem, device and target of `work`.

    `paths`: files that ``atune cache export`` wrote. Results with the installed versions come first, and newer results
    come before older results. Raises `UsageError` for a file that cannot be read or has no exported results.
    """
    key = work.key
    fitting = [
        entry
        for path in paths
        for entry in _entries(path)
        if entry.parts.fingerprint == key.fingerprint
        and all(getattr(entry.parts, name) == getattr(key, name) for name in ("device", "target"))
        and same_problem(entry.parts.problem, key.problem)
    ]
    return sorted(fitting, key=lambda entry: (entry.parts.versions == key.versions, entry.created), reverse=True)


def _entries(path: str) -> list[CacheEntry]:
    try:
        return read_exported(read_file(path))
    except (OSError, UsageError) as error:
        raise UsageError(f"shipped: cannot read {path}: {error}") from error
