"""The result of a run: its winner, and the outcome of every candidate.

What it prints and writes is reporting's, which imports this module, and is found by its import path.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from atune.errors import AtuneError
from atune.journal.candidate_state import Improvement
from atune.journal.events import CandidateMeasured, Event
from atune.journal.record import Record, Untried, record_of, roles_of, run_noise, standing, ties_of, unlisted, untried
from atune.journal.state import State
from atune.model.artifact import Artifact, Roles, source_path, what_failed
from atune.model.candidate import BASELINE, Config
from atune.model.folders import cache_folder, is_cached, is_stored
from atune.model.measurement import FinalEntry, Measurement, Timing, ratio_interval
from atune.model.roofline import ProblemWork, Roofline, problem_work, roofline

__all__ = ["Record", "Result", "State", "TuneResult"]

Ratio = tuple[float, float, float]
"""Low end, median and high end of a ratio's 95 % interval."""


class Result:
    """What a run found, made from events alone: a snapshot that later events do not change.

    `Result.of` and `Result.from_events` return a `TuneResult` where there is a winner.

    `journal`: path of the run's journal, None where none was written. `replayed`: its events come from a file, so its
    kernel is loaded from the cache folder only. `header`: the run's first event. `total`: candidates of the space,
    which is the sum of `measured`, `failed`, `pruned`, `duplicates` and `remaining`. `wall_s`: seconds of all parts of
    the run. `finished`: it ended in order. `devices`: those that were used. `warnings`: the run's messages for the
    user, first `about_default`: which default won though the space does not list it, or was all that worked.
    `best_index`: the winner's; None without one. The winner is the first entry of the final that still stands. Without
    a final it is the measured candidate with the smallest latency; on a tie, with the smallest config key. `records`
    holds every candidate of the space that was proposed. `baseline`: the record of the default configuration where the
    space does not list it; it may win, and counts nowhere. `all_records`: these, and then the baseline.
    """

    def __init__(self, state: State, journal: str | Path | None = None, *, replayed: bool = False) -> None:
        self.journal = None if journal is None else str(journal)
        self.header = state.header
        self.total = state.total
        self.wall_s = state.wall_s
        self.stages = state.stages.seconds
        """Seconds of compiling and of measuring."""
        self.finished = state.finished is not None
        self.interrupted = state.interrupted is not None
        """Whether the run was cut short; a run that was killed, or goes on, is neither that nor finished."""
        self.cache_hit = False
        """Whether it comes from the result cache, or from another task's tuning, and nothing was tuned for it."""
        self.devices = tuple(state.devices.values())
        self.measured = state.counts["measured"]
        self.failed = state.counts["failed"]
        self.pruned = state.counts["pruned"]
        self.duplicates = state.counts["duplicate"]
        self.built = state.built
        """Distinct codes that have a library."""
        self.stored = state.stored
        """Of these, how many an earlier run compiled."""
        self.remaining = max(0, self.total - state.settled)
        self.reason = state.finished.reason if state.finished else ""
        """Why the run ended, as `RunFinished` has it; empty for one that did not finish."""
        self.untried: tuple[Untried, ...] = untried(state)
        """What was not tried, by its reason."""
        self.final: tuple[FinalEntry, ...] = standing(state)
        """The finalists that still stand, by their credited index, fastest first; empty without a final."""
        self._final = {e.index: e.timing for e in self.final}
        self.ties: tuple[int, ...] | None = ties_of(state, self.final)
        """Finalists that are statistically tied with the winner, or as fast; None without a final. The default is
        preferred among equals, then the smallest config key."""
        self.work: ProblemWork = _work(state)
        """The operations and bytes of one call, as the user gave them or as derived from the kernels."""
        self._peaks = {device.id: device.peaks for device in self.devices}
        self.best_index: int | None = None if state.winner is None else state.first(state.winner).index
        made = {index: record_of(state, state.entries[index], self._final) for index in sorted(state.entries)}
        self.baseline: Record | None = made.pop(BASELINE, None)
        self.records = tuple(made.values())
        self.all_records = self.records if self.baseline is None else (*self.records, self.baseline)
        self._by_index = {record.index: record for record in self.all_records}
        self.about_default = unlisted(state, self.baseline)
        self.warnings = (*filter(None, [self.about_default]), *state.warnings)
        self._measured_by_latency = [state.first(m.index).index for m in state.ranked()]
        self.measurements: tuple[Measurement, ...] = _measurements(state, sorted(self._measured_by_latency))
        """First timings, one a measured candidate, by index; that of a baseline that may win has -1."""
        self.best_over_time: tuple[Improvement, ...] = state.best_over_time()
        """Each time a candidate became the best so far, by first timing. Its last entry need not be the winner."""
        self.kept = state.finished.kernel if state.finished else None
        """What the journal says of the winner's library, which may be gone since: see `artifact`."""
        self.roles: Roles = roles_of(state, self.best_index)
        """Which parameters are outputs, and what a call does with the others. Empty for a run that did not finish."""
        self._replayed = replayed
        self.noise: tuple[str, ...] = run_noise(state, self.final)
        """The signs that the machine was not quiet, and what to do: a sentence each; empty without any."""
        self._reference = self._pick_reference(state)
        self._final_reference = state.final.reference if state.final is not None and self.final else None

    @staticmethod
    def of(state: State, journal: str | Path | None = None, *, replayed: bool = False) -> Result:
        """Return the result of `state`, a `TuneResult` where it has a winner."""
        kind = Result if state.best is None else TuneResult
        return kind(state, journal, replayed=replayed)

    @staticmethod
    def from_events(events: Iterable[Event], journal: str | Path | None = None, *, replayed: bool = False) -> Result:
        """Fold `events`, in order, into a result, a `TuneResult` where it has a winner."""
        return Result.of(State.of(events), journal, replayed=replayed)

    @property
    def best(self) -> Record | None:
        """The winner's record; None where nothing of the space was measured."""
        return None if self.best_index is None else self._by_index[self.best_index]

    @property
    def best_config(self) -> Config | None:
        """The winner's configuration, a copy; None where nothing of the space was measured."""
        return None if self.best is None else dict(self.best.config)

    @property
    def latency_ms(self) -> float | None:
        """The winner's median latency, ms: the final's where there was one."""
        return None if self.best is None else self.best.latency_ms

    @property
    def reference_ms(self) -> float | None:
        """The reference's median latency, ms, on the device of the final, else on the winner's."""
        return None if self._reference is None else self._reference.latency_ms

    @property
    def failures(self) -> tuple[Record, ...]:
        """The records of candidates that failed, by index; those that were pruned are not among them."""
        return tuple(r for r in self.records if r.status == "failed")

    @property
    def default(self) -> Record | None:
        """The default configuration's record, which may be the `baseline`; None where there is none, or none yet."""
        index = self.header.default if self.header else None
        return None if index is None else self._by_index.get(index)

    @property
    def no_default(self) -> str:
        """Why there is no default configuration to compare with, as a sentence; empty where there is, or none yet."""
        default = self.default
        if default is None:
            why = self.header.no_default if self.header else ""
            return why and f"there is no default configuration to compare with: {why}"
        if default.latency_ms is not None or not default.message:
            return ""
        what = what_failed(default.kind) if default.kind else "was not measured"
        return f"the default configuration {what}: {default.message}"

    @property
    def default_wins(self) -> bool:
        """Whether no configuration beats the default: it wins, or has the same code as the winner."""
        default = self.default
        return default is not None and self.best_index in (default.index, default.same_as)

    @property
    def default_ms(self) -> float | None:
        """The default configuration's median latency, ms, of the same rounds as `latency_ms`."""
        return None if self.default is None else self.default.latency_ms

    @property
    def slowest(self) -> Record | None:
        """The slowest measured candidate: in the final where that holds the slowest by first timing."""
        if not self._measured_by_latency:
            return None
        index = self._measured_by_latency[-1]
        if index in self._final:
            index = max(self._final, key=lambda i: (self._final[i].latency_ms, i == index))
        return self._by_index[index]

    @property
    def speedup_over_default(self) -> Ratio | None:
        """How many times faster the winner is than the default: (low, ratio, high).

        The ratio is that of the latencies that the result shows. Low and high bound the 95 % confidence interval of the
        ratio round by round. None unless both were timed in the final.
        """
        return self._speedup(self.default)

    @property
    def speedup_over_reference(self) -> Ratio | None:
        """As `speedup_over_default`, over the reference; None unless it was timed in the final."""
        return self._speedup_over(self._final_reference)

    @property
    def reference_ratio(self) -> float | None:
        """How many times faster the winner is than the reference; below 1 it is slower.

        The ratio of `reference_ms` and `latency_ms`, which come from the same rounds of the final, if there is one.
        """
        return self._ratio(self.reference_ms)

    @property
    def default_ratio(self) -> float | None:
        """As `reference_ratio`, of the default configuration."""
        return self._ratio(self.default_ms)

    @property
    def speedup_over_slowest(self) -> Ratio | None:
        """As `speedup_over_default`, over the slowest candidate."""
        return self._speedup(self.slowest)

    @property
    def roofline(self) -> Roofline | None:
        """How near the winner comes to its device's peaks; None where the work of the problem is not known."""
        if self.best is None or self.best.timing is None:
            return None
        return roofline(self.best.timing.latency_ms, self.work, self._peaks.get(self.best.device))

    @property
    def artifact(self) -> Artifact | None:
        """The winner's place in its library; None where it is gone, or was not kept."""
        try:
            return self._library()
        except AtuneError:
            return None

    @cached_property
    def kernel(self) -> Any:
        """The winner as a callable, loaded on first access. Raises `AtuneError` when its library is gone, or where
        `setup` changed the inputs, which a call would not.

        Inputs must have the shapes, dtypes and strides that it was tuned for. Called with the inputs, it returns the
        outputs. Called with every parameter, it writes into the given outputs. `as_op` makes a torch operator of it.
        """
        loader = importlib.import_module("atune.stages.measure.loader")
        return loader.Kernel(self._library(), self.roles)

    @cached_property
    def kernel_source(self) -> str:
        """The winner's device source, kept next to its library. Raises `AtuneError` when it is gone."""
        library = self._library()
        try:
            return Path(source_path(library.path, library.symbol)).read_text()
        except OSError as error:
            raise AtuneError(f"the winner's source was not kept with its library ({error}); tune again") from error

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the run's report, the page of ``atune report``, to the file `path`, in place of an earlier one.

        Raises `AtuneError` where the run kept no journal, and `UsageError` where `path` cannot be written.
        """
        from atune.journal.output import write_output

        page = importlib.import_module("atune.reporting.report").report(self._kept("report"))
        write_output(os.fspath(path), page.encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the run's journal to the new file `path`: `replay` reads it, and `resume` goes on from it.

        Raises `AtuneError` where the run kept no journal, and `JournalError` where `path` exists or is not writable.
        """
        from atune.journal.reader import JournalReader
        from atune.journal.writer import write_journal

        write_journal(os.fspath(path), JournalReader(self._kept("save")))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: the kernel is loaded again where it is asked for."""
        return {name: value for name, value in self.__dict__.items() if name != "kernel"}

    def __copy__(self) -> Result:
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        return found

    def __str__(self) -> str:
        """Return what the command line prints of it."""
        return str(importlib.import_module("atune.reporting.summary").summary_text(self))

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it: the text of the command line."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        latency = "no winner" if self.latency_ms is None else f"{self.latency_ms:.4g} ms with {self.best_config}"
        return f"<{type(self).__name__} {latency}; {self.measured} measured, {self.failed} failed of {self.total}>"

    def _kept(self, what: str) -> str:
        if self.journal is None:
            raise AtuneError(f"{what}: the run kept no journal; give journal=, or a cache folder that can be written")
        return self.journal

    def _library(self) -> Artifact:
        if self.best is None:
            raise AtuneError("there is no kernel: no candidate worked")
        return loadable(self.kept, replayed=self._replayed)

    def _ratio(self, slow_ms: float | None) -> float | None:
        return round(slow_ms / self.latency_ms, 5) if slow_ms and self.latency_ms else None

    def _speedup(self, slow: Record | None) -> Ratio | None:
        if slow is None or self.best_index is None:
            return None
        return self._speedup_over(self._final.get(slow.index if slow.same_as is None else slow.same_as))

    def _speedup_over(self, timing: Timing | None) -> Ratio | None:
        fast = None if self.best_index is None else self._final.get(self.best_index)
        if timing is None or fast is None or not timing.samples_us:
            return None
        if not fast.samples_us or not all(fast.samples_us):  # a journal may hold what no run wrote
            return None
        low, _, high = ratio_interval(timing, fast)
        ratio = timing.latency_ms / fast.latency_ms
        return min(low, ratio), ratio, max(high, ratio)

    def _pick_reference(self, state: State) -> Timing | None:
        device = self.best.device if self.best else ""
        if state.final is not None and self.final:
            if state.final.reference is not None:
                return state.final.reference
            device = state.final.device
        known = state.references
        return known.get(device) or next(iter(known.values()), None)


class TuneResult(Result):
    """The result of a run that has a winner: what `tune`, `run` and `resume` return."""

    @property
    def best(self) -> Record:
        """The winner's record."""
        assert self.best_index is not None, "Result.of makes one of a state that has a winner"
        return self._by_index[self.best_index]

    @property
    def best_config(self) -> Config:
        """The winner's configuration, a copy."""
        return dict(self.best.config)

    @property
    def latency_ms(self) -> float:
        """The winner's median latency, ms: the final's where there was one."""
        assert self.best.latency_ms is not None, "a winner was measured"
        return self.best.latency_ms

    def save_bundle(self, folder: str | os.PathLike[str]) -> str:
        """Write the winner as a bundle, the new folder `folder`: `atune.results.save_bundle` of this result alone."""
        save = importlib.import_module("atune.frontends.api.save_bundle").save_bundle
        return str(save(folder, [self]))


def _work(state: State) -> ProblemWork:
    header = state.header
    given = (None, None) if header is None else (header.flops, header.bytes)
    return problem_work((entry.facts for entry in state.entries.values()), *given)


def _measurements(state: State, indices: Iterable[int]) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(e.index, m.timing, m.checked, m.max_error, m.seconds, m.writes)
        for index in indices
        if isinstance(m := (e := state.entries[index]).outcome, CandidateMeasured)
    )


def loadable(artifact: Artifact | None, *, replayed: bool) -> Artifact:
    """Return the library of a winner, once it is known to be there and to be safe to load.

    `replayed`: its path comes from a file, and only a library of the cache folder is loaded. Raises `AtuneError`.
    """
    if artifact is None:
        raise AtuneError(
            "there is no kernel: the run did not finish, or its winner's library could not be kept; tune again"
        )
    if replayed and not is_cached(artifact.path):
        # Loading a library runs its code, and a journal may come from a stranger.
        raise AtuneError(f"{artifact.path} is outside the cache folder {cache_folder()}, and is not loaded; tune again")
    if not Path(artifact.path).is_file():
        raise AtuneError(
            f"the winner's library {artifact.path} is gone (cache cleaned, or another machine's); tune again"
        )
    if replayed and not (is_stored(artifact.path) and artifact.symbol.isidentifier()):
        raise AtuneError(
            f"{artifact.path} is not the library that was kept under this name, and is not loaded; tune again"
        )
    return artifact
