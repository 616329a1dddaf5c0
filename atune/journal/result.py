"""The result of a run: its winner, and the outcome of every candidate.

Methods of `Result` also print the result, and write a report and a bundle. These methods import higher layers.
"""

from __future__ import annotations

import importlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import AtuneError
from atune.journal.events import BenchmarkFailed, BuildFailed, CandidateMeasured, CandidatePruned, Event
from atune.journal.state import Entry, Improvement, Outcome, StageSeconds, State, Status, header_in, status_of
from atune.model.artifact import Artifact, MachineFacts, Roles, StaticFacts, source_path, what_failed
from atune.model.candidate import BASELINE, MOST_SHOWN, Config, describe_config, shortened
from atune.model.folders import loadable
from atune.model.measurement import DISTURBS, FinalEntry, Measurement, ProblemWork, Roofline, Timing, ratio_interval

SPREAD_LIMITS = {"perf_counter": 0.1}
GPU_SPREAD_LIMIT = 0.03
"""A GPU is called noisy if the finalists' spread exceeds this number. On an idle H200, the spread is at most 0.01."""
CLOCK_LIMIT = 0.02
"""A machine is called noisy if a GPU's highest clock in the run exceeds its lowest clock by more than this share."""
CHOSEN = ("application clocks", "display clocks")
"""Reasons for a low clock that are no sign of noise, because a user sets them on purpose."""

MeasuredOn = Sequence[tuple[str, Timing]]
"""Timings, each with the id of its device."""


def noise_of(timings: MeasuredOn, contenders: MeasuredOn) -> list[str]:
    """Return a message for each sign of noise. The message also says what to do. For a quiet machine, return nothing.

    `timings`: all timings of a run. `contenders`: the timings that decide the winner. Only their spread matters.
    """
    signs = _scatter(contenders)
    for device in dict.fromkeys(name for name, _ in timings):
        signs += _clocks(device, [timing for name, timing in timings if name == device])
    return signs


def _scatter(contenders: MeasuredOn) -> list[str]:
    if not contenders:
        return []
    spread = statistics.median(timing.spread for _, timing in contenders)
    method = contenders[0][1].method
    if spread <= SPREAD_LIMITS.get(method, GPU_SPREAD_LIMIT):
        return []
    place = "the CPU" if method == "perf_counter" else f"device {contenders[0][0]}"
    return [
        f"the best candidates' samples vary by {100 * spread:.0f} %, so close candidates cannot be told apart. "
        f"Stop other programs on {place}, and tune again"
    ]


def _clocks(device: str, timings: Sequence[Timing]) -> list[str]:
    """Return a message if the device's clock changed or was lowered."""
    seen = [timing.conditions for timing in timings if timing.conditions is not None]
    clocks = [conditions.sm_mhz for conditions in seen if conditions.sm_mhz]
    reasons = {reason for conditions in seen for reason in conditions.throttle}.difference(CHOSEN)
    moved = clocks and max(clocks) > min(clocks) * (1 + CLOCK_LIMIT)
    if not moved and not reasons:
        return []
    what = f"varied between {min(clocks)} and {max(clocks)} MHz" if moved else "was lowered"
    what += f" ({', '.join(sorted(reasons))})" * bool(reasons)
    do = "Cool the GPU, raise its power limit, or lock" if reasons else "Lock"
    return [f"the clock of device {device} {what}. {do} the clock with nvidia-smi -lgc, and tune again"]


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one candidate.

    `index`: the candidate's number in the space, or -1 for the baseline. `config`: the configuration. `key`: 16 hex
    digits of the configuration's hash. `status`: a ``duplicate`` has the same code as candidate `same_as`, whose record
    has the measurement or failure. A ``remaining`` candidate was proposed and has no outcome yet. `latency_ms` and
    `timing`: from the final if the candidate took part in the final, otherwise from the candidate's first timing. A
    duplicate has the latency and timing of candidate `same_as`. `kind`, `message` and `detail`: the failure. The
    `message` of a pruned candidate says why it was pruned. `device`: the id of the device that measured the candidate,
    or empty. `facts`: the facts that lowering collected, or None if the candidate was not lowered. `code_key`: a key
    that candidates with equal code share; empty if the code is unknown. `source_key`: a key that candidates share if
    their source is equal, both for the device and for the host.
    """

    index: int
    key: str
    config: Config
    status: Status
    latency_ms: float | None = None
    timing: Timing | None = None
    device: str = ""
    same_as: int | None = None
    kind: str = ""
    message: str = ""
    detail: str = ""
    facts: StaticFacts | None = None
    code_key: str = ""
    source_key: str = ""
    machine: MachineFacts | None = None
    """Registers, stack and code size of this candidate or of `same_as`. None for target ``c``, or without a library."""
    instead: int | None = None
    """The candidate that the run preferred to this candidate because of the layout, or None."""
    bits: str = ""
    """A digest of the outputs for the check's inputs: equal bits have equal digests. Empty if nothing was measured."""
    repeats: bool = True
    """Whether the outputs of two calls with the same inputs had the same bits."""
    printed: str = ""
    """The first lines that the user's kernel, inputs, reference and check printed. A repeated line appears once."""

    @property
    def credited(self) -> int:
        """The index of the candidate that has the measurement: this candidate's index, or `same_as` of a duplicate."""
        return self.index if self.same_as is None else self.same_as


def record_of(state: State, entry: Entry, finals: Mapping[int, Timing]) -> Record:
    """Return the record of a candidate. `finals`: the timings of the valid finalists, by `Record.credited`."""
    first = state.first(entry.index)
    timing, device, kind, message, detail = None, "", "", "", ""
    instead = None
    match first.outcome:
        case CandidateMeasured() as event:
            final = finals.get(first.index)
            timing = final or event.timing
            device = state.final.device if final and state.final else event.device
        case CandidatePruned() as event:
            message, instead = event.reason, event.instead
        case BuildFailed() | BenchmarkFailed() as event:
            kind, message, detail = event.kind, event.message, event.detail[-10 * MOST_SHOWN :]
            device = event.device if isinstance(event, BenchmarkFailed) else ""
    return Record(
        index=entry.index,
        key=entry.key,
        config=entry.config,
        status=status_of(first) if first is entry else "duplicate",
        latency_ms=None if timing is None else timing.latency_ms,
        timing=timing,
        device=device,
        same_as=None if first is entry else first.index,
        kind=kind,
        message=shortened(message, MOST_SHOWN),
        detail=detail,
        facts=entry.facts,
        code_key=entry.code_key,
        source_key=entry.source_key,
        machine=first.machine,
        instead=instead,
        bits=getattr(first.outcome, "bits", ""),
        repeats=getattr(first.outcome, "repeats", True),
        printed=(entry.printed + getattr(first.outcome, "printed", ""))[: 10 * MOST_SHOWN],
    )


class SameBits(msgspec.Struct, frozen=True, kw_only=True):
    """A bitwise comparison of the measured candidates' outputs for the same inputs. Duplicates are not counted.

    `asked`: whether a candidate may win only if its outputs have the same bits as the default's outputs. `winner`:
    whether the winner's outputs have the same bits as the default's outputs; None if there is no winner or no measured
    default. `same`: how many of the `measured` candidates have the default's bits. This includes the default.
    `classes`: the number of different outputs. `varying`: the number of candidates whose outputs change from call to
    call. `seeds`: the number of draws of the inputs on which the finalists were compared, including the draw for the
    check.
    """

    asked: bool
    winner: bool | None
    same: int
    measured: int
    classes: int
    varying: int
    seeds: int


def valid_finalists(state: State) -> tuple[FinalEntry, ...]:
    """Return the final's entries whose candidates have not failed later. Each `index` is a `Record.credited`."""
    entries = state.final.entries if state.final else ()
    firsts = [(state.first(e.index), e.timing) for e in entries]
    return tuple(FinalEntry(e.index, timing) for e, timing in firsts if isinstance(e.outcome, CandidateMeasured))


def roles_with(roles: Roles, outcome: Outcome) -> Roles:
    """Return `roles` with the inputs that a measured candidate wrote into, and the inputs that `setup` changed."""
    if not isinstance(outcome, CandidateMeasured):
        return roles
    writes = tuple(sorted({*roles.writes, *outcome.writes}))
    return msgspec.structs.replace(roles, writes=writes, set_up=outcome.set_up)


__all__ = ["Record", "Result", "State", "TuneResult"]


def _above(name: str) -> Any:
    """Return a function of a higher layer, such as ``reporting.report.report``. Its module imports this module."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"atune.{module}"), function)


Ratio = tuple[float, float, float]
"""The low end of a ratio's 95 % confidence interval, the ratio, and the high end of the interval."""


class Result:
    """The result of a run, computed from the run's events. Costly attributes are computed on first access.

    `Result.of` and `Result.from_events` return a `TuneResult` if there is a winner. The winner is the first entry of
    the final whose candidate has not failed later. If there was no final, the winner is the measured candidate with the
    smallest latency. If several candidates have this latency, the candidate with the smallest config key wins.
    """

    def __init__(self, state: State, journal: str | Path | None = None, *, replayed: bool = False) -> None:
        self._state = state
        """The state of the run, to which no further event may be applied."""
        self.journal = None if journal is None else str(journal)
        """The path of the run's journal. None if the run wrote no journal."""
        self.replayed = replayed
        """Whether the events come from a file, so that the kernel is loaded only if it is in the cache folder."""
        self.cache_hit = False
        """Whether nothing was measured, because the result was in the result cache, or another task tuned the work."""
        self.header = header_in(state)
        self.strategy = self.header.strategy
        self.total = state.total
        """Number of candidates in the space: `measured` + `failed` + `pruned` + `duplicates` + `remaining`."""
        self.measured = state.counts["measured"]
        self.failed = state.counts["failed"]
        self.pruned = state.counts["pruned"]
        self.duplicates = state.counts["duplicate"]
        self.remaining = max(0, self.total - state.settled)
        self.built = state.built
        """Number of different codes that were compiled into a library."""
        self.stored = state.stored
        """Number of different codes whose library was reused because an earlier run had compiled it."""
        self.wall_s = state.wall_s
        """Elapsed seconds of the run, summed over the run's parts if it was resumed."""
        self.finished = state.finished is not None
        """Whether the run ended normally."""
        self.interrupted = state.interrupted is not None
        """Whether the run was interrupted. A run that was killed or goes on is neither finished nor interrupted."""
        self.reason = state.finished.reason if state.finished else ""
        """The reason that the run ended, as in `RunFinished.reason`. Empty if the run did not finish."""
        self.kept = state.finished.kernel if state.finished else None
        """The winner's library according to the journal. The file may be gone; `artifact` checks that it exists."""
        self.devices = tuple(state.devices.values())
        self.memory_bytes = state.memory_bytes
        """Peak device memory, in bytes, of the process that used the most, including the CUDA context. 0 on the CPU."""
        self.best_index: int | None = None if state.winner is None else state.first(state.winner).index
        """The index of the first candidate that has the winner's code. None if there is no winner."""
        self.best_over_time: tuple[Improvement, ...] = state.best_over_time()
        """The candidates whose first timing was the fastest so far. The last of them may differ from the winner."""
        self.final: tuple[FinalEntry, ...] = valid_finalists(state)
        """The finalists that have not failed after the final, fastest first. Their `index` is `Record.credited`."""
        self._final = {entry.index: entry.timing for entry in self.final}
        self._last = state.final if self.final else None
        self._final_reference = None if self._last is None else self._last.reference

    @staticmethod
    def of(state: State, journal: str | Path | None = None, *, replayed: bool = False) -> Result:
        """Return the result of a run with the state `state`. A run with a winner has a `TuneResult`."""
        kind = Result if state.winner is None else TuneResult
        return kind(state, journal, replayed=replayed)

    @staticmethod
    def from_events(events: Iterable[Event], journal: str | Path | None = None, *, replayed: bool = False) -> Result:
        """Return the result of a run with these events, in order. A run with a winner has a `TuneResult`."""
        return Result.of(State.of(events), journal, replayed=replayed)

    @cached_property
    def _recorded(self) -> dict[int, Record]:
        """The record of each candidate and of the baseline, by index."""
        return {
            index: record_of(self._state, entry, self._final) for index, entry in sorted(self._state.entries.items())
        }

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The record of each candidate of the space that was proposed, sorted by index."""
        return tuple(record for index, record in self._recorded.items() if index != BASELINE)

    @cached_property
    def all_records(self) -> tuple[Record, ...]:
        """The `records`, followed by the `baseline` if there is one."""
        return self.records if self.baseline is None else (*self.records, self.baseline)

    @property
    def baseline(self) -> Record | None:
        """The record of a default that the space does not list. The default may win, but no count includes it."""
        return self._recorded.get(BASELINE)

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The first measurement of each measured candidate, sorted by index. A baseline that may win has index -1."""
        state = self._state
        entries = [state.entries[index] for index in sorted(state.first(event.index).index for event in state.ranked())]
        return tuple(
            Measurement(e.index, m.timing, m.checked, m.max_error, m.seconds, m.writes)
            for e in entries
            if isinstance(m := e.outcome, CandidateMeasured)
        )

    @cached_property
    def ties(self) -> tuple[int, ...] | None:
        """The finalists that are statistically tied with the winner or exactly as fast, by `Record.credited`. In a tie
        the default wins, and without the default the smallest config key wins. None if there was no final, or if the
        first entry of the final has failed since."""
        first = self._state.first
        if self._last is None or first(self._last.entries[0].index).index != self.final[0].index:
            return None
        ties = {first(index).index for index in self._last.ties}
        return tuple(entry.index for entry in self.final[1:] if entry.index in ties)

    @cached_property
    def stages(self) -> StageSeconds:
        """The seconds that were spent compiling, and the seconds that were spent measuring."""
        return self._state.seconds.stages

    @cached_property
    def about_default(self) -> str:
        """A sentence if a default outside the space won, or if only this default worked. Otherwise empty."""
        baseline, state = self.baseline, self._state
        if baseline is None or baseline.latency_ms is None:
            return ""
        if self.best is baseline:
            return f"the winner, {describe_config(baseline.config)}, is your default, which the space does not list"
        if state.winner is not None or not self.finished or not (self.failed or self.pruned):
            return ""
        text = f"{describe_config(baseline.config)} ({baseline.latency_ms:.4g} ms)"
        refused = f"; {self.header.refused}" if self.header.refused else ""
        return f"nothing in the space worked, but your default did: {text}{refused}"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The run's warnings to the user. If `about_default` is not empty, it is the first warning."""
        return (*filter(None, [self.about_default]), *self._state.warnings)

    @cached_property
    def noise(self) -> tuple[str, ...]:
        """A message for each sign of a noisy machine. Warnings that other programs use a device come first."""
        others = [message for message in self._state.warnings if DISTURBS in message]
        firsts = [(event.device, event.timing) for event in self._state.ranked()]
        finals = [(self._last.device, entry.timing) for entry in self.final] if self._last else []
        most = max((timing.n_samples for _, timing in finals), default=0)
        best = [(device, timing) for device, timing in finals if timing.n_samples == most]  # timed to the final's end
        return (*others, *noise_of([*self._state.references.items(), *firsts, *finals], best))

    @cached_property
    def same_bits(self) -> SameBits:
        """The bitwise comparison of the candidates' outputs with the default's outputs."""
        state, ranked = self._state, self._state.ranked()
        having = {event.index for event in ranked if state.has_bits(event)}
        return SameBits(
            asked=state.same_bits,
            winner=state.winner in having if having and state.winner is not None else None,
            same=len(having),
            measured=len(ranked),
            classes=len({event.bits for event in ranked if event.bits}),
            varying=sum(not event.repeats for event in ranked),
            seeds=state.bits_seeds,
        )

    @cached_property
    def work(self) -> ProblemWork:
        """The number of operations and bytes of a call, as the user gave them or as derived from the kernels."""
        facts = (entry.facts for entry in self._state.entries.values())
        return ProblemWork.of(facts, self.header.flops, self.header.bytes)

    @cached_property
    def roles(self) -> Roles:
        """The roles of the kernel's parameters, such as outputs, and inputs that a call sets to zero. `Roles.writes`
        includes the inputs that the winner wrote into. If the run did not finish, the roles are empty."""
        roles = self._state.finished.roles if self._state.finished else Roles()
        outcome = None if self.best_index is None else self._state.outcome(self.best_index)
        return roles if outcome is None else roles_with(roles, outcome)

    @property
    def best(self) -> Record | None:
        """The winner's record, or the default's record if the default has the same code as the winner. None if nothing
        was measured."""
        default = self.default
        if self.default_wins and not (default is self.baseline and self.header.refused):
            return default
        return None if self.best_index is None else self._recorded[self.best_index]

    @property
    def best_config(self) -> Config | None:
        """A copy of the winner's configuration. None if no candidate of the space was measured."""
        return None if self.best is None else dict(self.best.config)

    @property
    def latency_ms(self) -> float | None:
        """The winner's median latency in ms: from the final, or if there was no final, from the first timing."""
        return None if self.best is None else self.best.latency_ms

    @property
    def reference_ms(self) -> float | None:
        """The reference's median latency in ms, from the final's device, or if there was no final, from the winner's
        device."""
        firsts, measured = self._state.references, self._last or self.best
        first = firsts.get(measured.device if measured is not None else "") or next(iter(firsts.values()), None)
        timing = self._final_reference or first
        return None if timing is None else timing.latency_ms

    @property
    def failures(self) -> tuple[Record, ...]:
        """The records of the failed candidates, sorted by index. Pruned candidates have not failed."""
        return tuple(record for record in self.records if record.status == "failed")

    @property
    def default(self) -> Record | None:
        """The default configuration's record, which may be the `baseline`. None if the default has no record yet."""
        return None if self.header.default is None else self._recorded.get(self.header.default)

    @property
    def no_default(self) -> str:
        """The reason that there is no default to compare with. Empty if a default exists or may still be measured."""
        default = self.default
        if default is None:
            why = self.header.no_default
            return why and f"there is no default configuration to compare with: {why}"
        if default.latency_ms is not None or not default.message:
            return ""
        what = what_failed(default.kind) if default.kind else "was not measured"
        return f"the default configuration {what}: {default.message}"

    @property
    def default_wins(self) -> bool:
        """Whether no configuration beats the default, because the default wins or has the same code as the winner."""
        default, best = self.default, self.best_index
        return default is not None and best is not None and best in (default.index, default.same_as)

    @property
    def default_ms(self) -> float | None:
        """The default configuration's median latency in ms, from the same rounds as `latency_ms`."""
        return None if self.default is None else self.default.latency_ms

    @property
    def speedup_over_default(self) -> Ratio | None:
        """How many times faster the winner is than the default: (low, ratio, high).

        The ratio is the quotient of the latencies that the result shows. `low` and `high` are the ends of the ratio's
        95 % confidence interval, computed from the rounds of the final. None unless the final timed both candidates.
        """
        return None if self.default is None else self._over(self._final.get(self.default.credited))

    @property
    def speedup_over_reference(self) -> Ratio | None:
        """How many times faster the winner is than the reference, in the form of `speedup_over_default`."""
        return self._over(self._final_reference)

    @property
    def reference_ratio(self) -> float | None:
        """How many times faster the winner is than the reference. Below 1, the winner is slower.

        The ratio is `reference_ms` / `latency_ms`. If there was a final, both latencies are from the same rounds.
        """
        return self._ratio(self.reference_ms)

    @property
    def default_ratio(self) -> float | None:
        """How many times faster the winner is than the default configuration: `default_ms` / `latency_ms`."""
        return self._ratio(self.default_ms)

    @property
    def roofline(self) -> Roofline | None:
        """The winner's rates as shares of the device's peak rates. None if the work of the problem is unknown."""
        if self.best is None or self.best.timing is None:
            return None
        peaks = {device.id: device.peaks for device in self.devices}
        return Roofline.of(self.best.timing.latency_ms, self.work, peaks.get(self.best.device))

    @cached_property
    def axis_importance(self) -> Any:
        """Each axis's share of the variance of the log latency (`Importance`). None with fewer than 20 measurements."""
        return _above("reporting.importance.axis_importance")(self)

    @property
    def artifact(self) -> Artifact | None:
        """The winner's library, and the winner's symbol in the library. None if the library is gone or never kept."""
        try:
            return self._library()
        except AtuneError:
            return None

    @cached_property
    def kernel(self) -> Any:
        """The winner as a callable, loaded on first access. A call with the inputs returns the outputs. A call with all
        parameters writes into the outputs that you pass. The callable's `as_op` makes a torch operator.

        The inputs must have the shapes, dtypes and strides that the kernel was tuned for. Raises `AtuneError` if the
        library is gone, or if the workload's `setup` changed the inputs, because a call does not run `setup`.
        """
        return _above("stages.loader.Kernel")(self._library(), self.roles)

    @cached_property
    def kernel_source(self) -> str:
        """The winner's device source, from a file next to its library. Raises `AtuneError` if the file is gone."""
        library = self._library()
        try:
            return Path(source_path(library.path, library.symbol)).read_text()
        except OSError as error:
            raise AtuneError(f"the winner's source was not kept with its library ({error}); tune again") from error

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the page that ``atune report`` makes to the file `path`. An earlier report in this file is overwritten.

        Raises `AtuneError` if the run kept no journal, and `UsageError` if the file cannot be written.
        """
        from atune.journal.writer import write_output  # the writer imports this module

        if self.journal is None:
            raise AtuneError("the run kept no journal; pass journal=, or make the cache folder writable")
        write_output(os.fspath(path), _above("reporting.report.report")(self.journal).encode())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without computed attributes and without the kernel, which a copy computes or loads again."""
        kinds = (vars(kind).items() for kind in type(self).__mro__)
        computed = {name for kind in kinds for name, value in kind if isinstance(value, cached_property)}
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    def __str__(self) -> str:
        """Return the summary that the command line prints."""
        return str(_above("reporting.text.printed")(_above("reporting.summary.summary_text")(self)))

    def _repr_html_(self) -> str:
        """Return the summary that the command line prints, as HTML for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        latency = "no winner" if self.latency_ms is None else f"{self.latency_ms:.4g} ms with {self.best_config}"
        return f"<{type(self).__name__} {latency}; {self.measured} measured, {self.failed} failed of {self.total}>"

    def _library(self) -> Artifact:
        if self.best is None:
            raise AtuneError("there is no kernel: no candidate worked")
        return loadable(self.kept, replayed=self.replayed)

    def _ratio(self, slow_ms: float | None) -> float | None:
        return round(slow_ms / self.latency_ms, 5) if slow_ms and self.latency_ms else None

    def _over(self, timing: Timing | None) -> Ratio | None:
        fast = None if self.best_index is None else self._final.get(self.best_index)
        if timing is None or fast is None:
            return None
        low, _, high = ratio_interval(timing, fast)
        ratio = timing.latency_ms / fast.latency_ms
        return min(low, ratio), ratio, max(high, ratio)


class TuneResult(Result):
    """The result of a run that has a winner. `tune`, `run` and `resume` return a `TuneResult`."""

    @property
    def best(self) -> Record:
        """The winner's record, or the default's record if the default has the same code as the winner."""
        best = super().best
        assert best is not None, "Result.of makes a TuneResult only if the state has a winner"
        return best

    @property
    def best_config(self) -> Config:
        """A copy of the winner's configuration."""
        return dict(self.best.config)

    @property
    def latency_ms(self) -> float:
        """The winner's median latency in ms: from the final, or if there was no final, from the first timing."""
        assert self.best.latency_ms is not None, "a winner was measured"
        return self.best.latency_ms

    def save_bundle(self, folder: str | os.PathLike[str]) -> str:
        """Write the winner as a bundle to the new folder `folder`. `atune.results.save_bundle` takes more results."""
        return str(_above("frontends.save_bundle.save_bundle")(folder, [self]))
