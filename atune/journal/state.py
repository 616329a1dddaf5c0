"""The state of a run, computed from the run's events. The same code is used during a run, on resume and on replay."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from atune.errors import UsageError
from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    BitsCompared,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    DeviceExcluded,
    DeviceLost,
    DeviceReady,
    Event,
    FinalOrdered,
    FinalStarted,
    JournalRepaired,
    ReferenceMeasured,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
    SpaceSurveyed,
    Warned,
)
from atune.model.artifact import COMMON_FAILURES, RAN, STORED, MachineFacts, StaticFacts
from atune.model.candidate import BASELINE, Config, with_tuples
from atune.model.device import DeviceInfo
from atune.model.measurement import Timing
from atune.model.settings import Budget

Status = Literal["measured", "failed", "pruned", "duplicate", "remaining"]
Outcome = CandidateMeasured | BuildFailed | BenchmarkFailed | CandidatePruned
Rank = tuple[float, str, int]
"""The latency in ms, the key and the index of a measured candidate."""
COMPILED_BEFORE = "compiled before"
"""The value of `ArtifactBuilt.reason` for a library that an earlier part of the run compiled and counted."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """The state of a candidate, which has no reference cycles, so that the garbage collector can skip the state."""

    index: int
    key: str = ""
    config: Config = {}
    code_key: str = ""
    source_key: str = ""
    ir_digest: str = ""
    printed: str = ""
    facts: StaticFacts | None = None
    machine: MachineFacts | None = None
    lowered: bool = False
    built: bool = False
    compile_s: float = 0.0
    """The candidate's share of the seconds that its library took to build."""
    parent: int | None = None
    """The index of an earlier candidate of the space that has the same code."""
    refused: bool = False
    """Whether the candidate is a baseline that a constraint refuses."""
    outcome: Outcome | None = None
    """The latest outcome of the candidate's code. If several candidates share the code, only the first has it."""
    surveyed: bool = False
    """`surveyed` and `further_layout` have the same meaning as in `CandidateProposed`."""
    further_layout: bool = False
    rank: Rank | None = None
    """The candidate's place in the ranking. None unless the candidate is measured and may win."""

    @property
    def in_space(self) -> bool:
        """Whether the candidate is in the space. The baseline is outside the space, and no count includes it."""
        return self.index != BASELINE

    @property
    def may_win(self) -> bool:
        """Whether the candidate was measured and may win. The baseline may be a different program than the candidates
        of the space, so it may win only if its outputs were checked and no constraint refuses it."""
        checked = isinstance(self.outcome, CandidateMeasured) and (self.in_space or self.outcome.checked)
        return checked and not self.refused


def status_of(entry: Entry) -> Status:
    """Return the status of `entry`, which must be the first candidate with its code."""
    match entry.outcome:
        case CandidateMeasured():
            return "measured"
        case CandidatePruned():
            return "pruned"
        case None:
            return "remaining"
        case _:
            return "failed"


class Improvement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The moment at which a candidate became the best so far, by its first timing."""

    tried: int
    """Number of candidates that had an outcome by then, including this candidate."""
    seconds: float
    """Seconds since the start of the run. For a resumed run, the seconds of all parts are added."""
    latency_ms: float
    index: int
    """Index of the candidate, or of the first candidate with the same code."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """A span of work on the worker or device `on`. `since`, `until`: seconds of the run. `candidates`: the number of
    candidates. `first`: the index of the first candidate."""

    on: str
    kind: Literal["lower", "build", "measure", "failed", "again", "final"]
    since: float
    until: float
    first: int
    candidates: int = 1


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds that a run spent on compiling (lowering and building) and on first timings.

    `compile_s` is the sum over compile workers, and `benchmark_s` the sum over devices. `compile_wall_s` is the time in
    which at least one worker was compiling, and `benchmark_wall_s` the time in which at least one device was measuring.
    Failed compilations, the survey, the comparison of a compiler state and the final are not included.
    """

    compile_s: float
    compile_wall_s: float
    benchmark_s: float
    benchmark_wall_s: float


class TimeSums:
    """The sum of the seconds of a run's parts, and the spans of work of each worker and device."""

    def __init__(self) -> None:
        self._ended_s = self._part_s = self._part_started = 0.0
        self.spans: list[Span] = []
        self.parts: list[float] = []
        """The time in seconds at which each part except the first began."""
        self._began: dict[str, float] = {}
        """The time in seconds at which each device began to measure its current candidate."""

    @property
    def wall_s(self) -> float:
        """The sum of the seconds of all parts. A part without an end counts up to its last event."""
        return self._ended_s + self._part_s

    @property
    def stages(self) -> StageSeconds:
        """The seconds that were spent compiling, and the seconds that were spent measuring."""
        compiling = [(span.since, span.until) for span in self.spans if span.kind in ("lower", "build")]
        measuring = [(span.since, span.until) for span in self.spans if span.kind in _MEASURED.values()]
        return StageSeconds(
            compile_s=round(sum(until - since for since, until in compiling), 3),
            compile_wall_s=round(_union_s(compiling), 3),
            benchmark_s=round(sum(until - since for since, until in measuring), 3),
            benchmark_wall_s=round(_union_s(measuring), 3),
        )

    def apply(self, event: Event) -> None:
        now = event.mono
        match event:
            case RunResumed():
                self._end_part(self._part_s)  # adds nothing if the previous part ended properly
                self._part_started = now
                self.parts.append(now)
                self._began.clear()
                return
            case CandidateLowered() if event.seconds:
                self.spans.append(Span(event.worker, "lower", max(0.0, now - event.seconds), now, event.index))
            case ArtifactBuilt() if event.seconds and event.reason != COMPILED_BEFORE and event.indices:
                since, n = max(0.0, now - event.seconds), len(event.indices)
                self.spans.append(Span(event.worker, "build", since, now, event.indices[0], n))
            case BenchmarkStarted():
                self._began[event.device] = now
            case CandidateMeasured() | BenchmarkFailed() | BenchmarkRepeated():
                if (began := self._began.pop(event.device, None)) is not None:
                    self.spans.append(Span(event.device, _MEASURED[type(event)], began, now, event.index))
            case FinalOrdered():  # the final began when all compiling and measuring had ended
                begun = max([0.0, *(span.until for span in self.spans), *self.parts[-1:]])
                self.spans.append(Span(event.device, "final", min(begun, now), now, 0, len(event.entries)))
        self._part_s = max(self._part_s, now - self._part_started)
        if isinstance(event, RunFinished | RunInterrupted):
            self._end_part(event.wall_s)

    def _end_part(self, wall_s: float) -> None:
        self._ended_s += wall_s
        self._part_s, self._part_started = 0.0, float("inf")


_MEASURED: dict[type[Event], Literal["measure", "failed", "again"]] = {
    CandidateMeasured: "measure",
    BenchmarkFailed: "failed",
    BenchmarkRepeated: "again",
}
"""The kind of a device's `Span` for each type of event that ends a span."""


def _union_s(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of `spans`, in seconds."""
    total, end = 0.0, float("-inf")
    for low, high in sorted(spans):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total


class State:
    """The state of a run. Pass each event to `apply`, in order. The state can be read at any time.

    If several candidates have the same code, their latest outcome belongs to the first of them in the space's order. A
    baseline outside the space is ranked if it may win, but no count includes the baseline. The baseline wins only if a
    candidate of the space was also measured.
    """

    def __init__(self) -> None:
        self.header: RunStarted | None = None
        self.entries: dict[int, Entry] = {}
        self.counts: Counter[str] = Counter()
        """Number of candidates for each `Status` except ``remaining``."""
        self.kinds: Counter[str] = Counter()
        """Number of failed candidates for each kind of failure."""
        self.doubted = False
        """Whether a part ended as ``mismatched`` (see `RunFinished.reason`), so that later parts try all candidates."""
        self.lowered = self.built = 0
        """Number of candidates that were lowered, and number of different codes that were built."""
        self._stored: set[int] = set()
        self.unbuilt = 0
        """Number of different codes that have an outcome, but were not built."""
        self.surveyed: SpaceSurveyed | None = None
        """The facts that the survey collected for the strategy. None if the space was not surveyed."""
        self.compile_s: list[float] = []
        """Compile times per candidate, sorted, without reused libraries. A library's seconds are divided evenly."""
        self.devices: dict[str, DeviceInfo] = {}
        self.memory_bytes = 0
        """Peak device memory, in bytes, of the device's process that used the most memory."""
        self.references: dict[str, Timing] = {}
        """The first timing of the reference on each device."""
        self.other_bits: set[int] = set()
        """Candidates whose output bits differ from the default's for inputs drawn with further seeds."""
        self.bits_seeds = 1
        """Number of draws of the inputs for which the finalists' outputs were compared with the default's."""
        self.final: FinalOrdered | None = None
        self.final_losses = 0
        """Number of times that a device's process or the whole program died during a final."""
        self._in_final = False
        self.finished: RunFinished | None = None
        """The end of the latest part. None while the part runs, and after an interruption."""
        self.interrupted: RunInterrupted | None = None
        self.resumed: RunResumed | None = None
        """The start of the latest part. None if the run was never resumed."""
        self.accepted = False
        """Whether the user accepted that the run continues although the work differs from the work in the header."""
        self.warnings: list[str] = []
        self._improvements: list[Improvement] = []
        self.last_seq = -1
        self.last_mono = 0.0
        self.seconds = TimeSums()
        self.measuring: dict[int, BenchmarkStarted] = {}
        """The start of each measurement that is going on, or was going on when the program died."""
        self._deaths: Counter[int] = Counter()
        self._ranking: list[Rank] = []
        """The measured candidates that may win, sorted by latency. Each code appears once."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> State:
        """Return the state after `events`, which must be in the order of their `seq`."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: Event) -> None:
        """Update the state with an event. Events must be applied in the order of their `seq`."""
        self.last_seq, self.last_mono = event.seq, event.mono
        self.seconds.apply(event)
        self.memory_bytes = max(self.memory_bytes, getattr(event, "memory_bytes", 0))
        if self._in_final:
            self.final_losses += isinstance(event, DeviceLost | RunResumed)
            self._in_final = isinstance(event, Warned | BitsCompared | JournalRepaired)
        match event:
            case CandidateProposed():
                entry = self._made(event.index)
                entry.key, entry.config = event.key, with_tuples(event.config)
                entry.surveyed, entry.further_layout = event.surveyed, event.further_layout
                self._rank(entry)
            case CandidateLowered():
                entry = self._made(event.index)
                self.lowered += not entry.lowered and entry.in_space
                entry.lowered, entry.code_key, entry.facts = True, event.code_key, event.facts
                entry.source_key, entry.ir_digest, entry.printed = event.source_key, event.ir_digest, event.printed
            case CandidateAliased():
                self._alias(event.index, event.same_as)
            case ArtifactBuilt():
                self._note_library(event)
            case BenchmarkStarted():
                self.measuring[event.index] = event
            case CandidateMeasured():
                self.final = None  # the final did not time this library, and no longer decides
                self._settle(event)
            case CandidatePruned() | BuildFailed() | BenchmarkFailed():
                self._settle(event)
            case BenchmarkRepeated():
                self.measuring.pop(event.index, None)  # the candidate may wait for another device
            case _:
                self._apply_to_run(event)

    def _apply_to_run(self, event: Event) -> None:
        """Update the state with an event that is about the whole run and not about a candidate."""
        match event:
            case RunStarted():
                self.header = event
            case DeviceReady():
                self.devices[event.device.id] = event.device
            case DeviceExcluded():
                self.warnings.append(f"device {event.device} is left out: {event.reason}")
                self._forget(event.device)
            case ReferenceMeasured():
                self.references[event.device] = event.timing
            case BitsCompared():
                self.other_bits.update(event.differ)
                self.bits_seeds = event.seeds
            case FinalStarted():
                self._in_final = True
            case FinalOrdered():
                self.final = event
            case SpaceSurveyed():
                self.surveyed = event
            case Warned():
                self.warnings.append(event.message)
            case RunFinished():
                self.finished, self.interrupted = event, None
                self.doubted |= event.reason == "mismatched"
                self.measuring.clear()
            case RunInterrupted():
                self.finished, self.interrupted = None, event
                self.measuring.clear()
            case RunResumed():
                self._deaths.update(self.measuring.keys())
                self.measuring.clear()
                self.resumed = event
                self.accepted |= bool(event.accepted)
                self.finished = self.interrupted = None

    def entry(self, index: int) -> Entry:
        """Return the entry of candidate `index`. For an unknown candidate, return an empty entry, which is not kept."""
        return self.entries.get(index) or Entry(index)

    def first(self, index: int) -> Entry:
        """Return the first candidate in the space's order that has the same code as candidate `index`."""
        entry = self.entries.get(index) or Entry(index)
        while entry.parent is not None:
            entry = self.entries.get(entry.parent) or Entry(entry.parent)
        return entry

    def outcome(self, index: int) -> Outcome | None:
        """Return the latest outcome of candidate `index`, or of a candidate with the same code. It may be None."""
        return self.first(index).outcome

    def ranked(self, most: int | None = None) -> list[CandidateMeasured]:
        """Return a measurement for each code, sorted by the first timing, fastest first.

        A measurement's `index` is the candidate that was compiled and ran. `most`: the largest number of measurements.
        """
        outcomes = (self.entries[index].outcome for _, _, index in self._ranking[:most])
        return [outcome for outcome in outcomes if isinstance(outcome, CandidateMeasured)]

    @property
    def best(self) -> tuple[int, float] | None:
        """The index and the latency in ms of the fastest code, by first timing. None if nothing is measured yet."""
        if not self.counts["measured"]:
            return None
        latency_ms, _, index = self._ranking[0]
        return index, latency_ms

    def best_over_time(self) -> tuple[Improvement, ...]:
        """Return every change of the best candidate by first timing. Retracted measurements are left out."""
        return tuple(msgspec.structs.replace(s, index=self.first(s.index).index) for s in self._improvements)

    @property
    def winner(self) -> int | None:
        """The index of the candidate that ran and won: the first finalist that may still win, or without a finalist the
        fastest candidate. None if no candidate of the space is measured."""
        entries = self.final.entries if self.final else ()
        standing = (entry.index for entry in entries if self.first(entry.index).may_win)
        return None if self.best is None else next(standing, next((event.index for event in self.admitted(1)), None))

    @property
    def default_index(self) -> int | None:
        """The default configuration's index. None if there is no default, or if the run has not begun."""
        return None if self.header is None else self.header.default

    @property
    def default(self) -> CandidateMeasured | None:
        """The measurement of the default configuration or of a candidate with the same code. None if not measured."""
        outcome = None if self.default_index is None else self.outcome(self.default_index)
        return outcome if isinstance(outcome, CandidateMeasured) else None

    @property
    def same_bits(self) -> bool:
        """Whether a candidate may win only if its outputs have the same bits as the default's outputs."""
        settings = {} if self.header is None else self.header.settings.get("benchmark", {})
        return settings.get("same_bits") is not None

    def has_bits(self, event: CandidateMeasured) -> bool:
        """Tell whether a candidate's outputs in every call are known to have the same bits as the default's outputs."""
        default = self.default
        if default is None or event.index in self.other_bits:
            return False
        equal = default.bits == event.bits and default.repeats and event.repeats
        return bool(event.bits) and (event is default or equal)

    def admitted(self, most: int | None = None) -> list[CandidateMeasured]:
        """Return the candidates of `ranked`. If `same_bits` is true, return only candidates with the default's bits."""
        if not self.same_bits:
            return self.ranked(most)
        return [event for event in self.ranked() if self.has_bits(event)][:most]

    def deaths(self, index: int) -> int:
        """Return how many times the program died while it was measuring candidate `index`, including this part."""
        return self._deaths[index] + (index in self.measuring)

    @property
    def all_differ(self) -> bool:
        """Whether the default and the first candidates all have other outputs than the reference, which may then be
        wrong."""
        default = None if self.default_index is None else self.outcome(self.default_index)
        if not isinstance(default, BenchmarkFailed) or default.kind != "mismatch" or self.counts["measured"]:
            return False
        return self.kinds["mismatch"] >= COMMON_FAILURES and not any(self.kinds[kind] for kind in RAN - {"mismatch"})

    @property
    def total(self) -> int:
        """Number of candidates in the space."""
        return 0 if self.header is None else self.header.total

    @property
    def stored(self) -> int:
        """Number of different codes whose library was reused because an earlier run had compiled it."""
        return len({self.first(index).index for index in self._stored} - {BASELINE})

    @property
    def settled(self) -> int:
        """Number of candidates that need no more work, because they were measured, failed, pruned or duplicates."""
        return sum(self.counts.values())

    @property
    def wall_s(self) -> float:
        """The sum of the seconds of all parts of the run. A part without an end counts up to its last event."""
        return self.seconds.wall_s

    def _made(self, index: int) -> Entry:
        if index not in self.entries:
            refused = index == BASELINE and self.header is not None and bool(self.header.refused)
            self.entries[index] = Entry(index, refused=refused)
        return self.entries[index]

    def _note_library(self, event: ArtifactBuilt) -> None:
        """Count a library once for each different code that the library contains."""
        machine = dict(zip(event.indices, event.machine, strict=False))
        fresh = not any(self.first(index).built for index in event.indices)  # else an earlier part reported it
        each_s = event.seconds / max(1, len(event.indices))
        if fresh and each_s > 0 and event.reason != COMPILED_BEFORE:
            at = bisect.bisect(self.compile_s, each_s)
            self.compile_s[at:at] = [each_s] * len(event.indices)
        for index in event.indices:
            self._made(index)
            entry = self.first(index)
            self.built += not entry.built and entry.in_space
            if event.why == STORED and not entry.built:
                self._stored.add(index)
            self._count(entry, -1)
            entry.built, entry.compile_s = True, each_s
            entry.machine = machine.get(index) or entry.machine
            self._count(entry, 1)

    def _settle(self, event: Outcome) -> None:
        self._made(event.index)
        self.measuring.pop(event.index, None)
        first = self.first(event.index)
        self._count(first, -1)
        first.outcome = event
        self._count(first, 1)
        self._rank(first)

    def _forget(self, device: str) -> None:
        """Retract the measurements of `device`, because they cannot be compared with measurements of other devices."""
        for entry in self.entries.values():
            if isinstance(entry.outcome, CandidateMeasured) and entry.outcome.device == device:
                self._count(entry, -1)
                entry.outcome = None
                self._rank(entry)
                self.final = None  # an earlier part of the run may have had a final

    def _alias(self, index: int, same_as: int) -> None:
        self._made(index)
        self._made(same_as)
        first, other = sorted((self.first(index), self.first(same_as)), key=lambda e: (not e.in_space, e.index))
        if first is other:
            return
        self._count(first, -1)
        self._count(other, -1)
        latest = [e.outcome for e in (first, other) if e.outcome is not None]
        first.outcome, other.outcome = max(latest, key=lambda o: o.seq, default=None), None
        self.built -= sum(entry.built and entry.in_space for entry in (first, other))
        first.built, other.built = first.built or other.built, False
        first.machine = first.machine or other.machine
        self.built += first.built
        other.parent = first.index
        self._count(first, 1)
        self._rank(first)
        self._rank(other)
        self.counts["duplicate"] += other.in_space

    def _count(self, entry: Entry, step: int) -> None:
        if entry.outcome is not None and entry.in_space:
            self.counts[status_of(entry)] += step
            self.unbuilt += 0 if entry.built else step
            if isinstance(entry.outcome, BuildFailed | BenchmarkFailed):
                self.kinds[entry.outcome.kind] += step

    def _rank(self, entry: Entry) -> None:
        """Update the ranking of `entry`, whose outcome or key may have changed."""
        outcome, was, now = entry.outcome, entry.rank, None
        if isinstance(outcome, CandidateMeasured) and entry.may_win:
            now = outcome.timing.latency_ms, entry.key, entry.index
        if now == was:
            return
        if was is not None:
            del self._ranking[bisect.bisect_left(self._ranking, was)]
        if now is not None:
            bisect.insort(self._ranking, now)
        entry.rank = now
        if was is not None:
            self._improvements = [step for step in self._improvements if self._stands(step)]
        if self.best is not None and not (self._improvements and self._improvements[-1].latency_ms <= self.best[1]):
            index, latency_ms = self.best
            step = Improvement(tried=self.settled, seconds=round(self.wall_s, 6), latency_ms=latency_ms, index=index)
            self._improvements.append(step)

    def _stands(self, step: Improvement) -> bool:
        outcome = self.outcome(step.index)
        return isinstance(outcome, CandidateMeasured) and outcome.timing.latency_ms == step.latency_ms


def header_in(state: State) -> RunStarted:
    """Return the header of a run that has begun. A journal without a header cannot be read."""
    assert state.header is not None, "the header is the first event"
    return state.header


def proposed(state: State) -> list[Entry]:
    """Return the candidates of the space that the strategy proposed, in the order in which it proposed them."""
    return [entry for entry in state.entries.values() if entry.key and entry.in_space and not entry.surveyed]


def finished(state: State, budget: Budget, reason: str = "") -> bool:
    """Tell whether `budget` allows no more candidates in a run that has ended, or that ends now for `reason`."""
    if (reason := reason or ended_by(state)) in ("", "stopped"):
        return False
    done = [entry for entry in proposed(state) if state.outcome(entry.index) is not None]
    most = budget.most(state.total)
    used_up = most is not None and sum(not entry.further_layout for entry in done) >= most
    used_up |= all_proposed(state, budget, reason)
    settled = len(done) + sum(entry.surveyed for entry in state.entries.values())
    return settled >= state.total or used_up or budget.used_up(state.wall_s)


def all_proposed(state: State, budget: Budget, reason: str = "") -> bool:
    """Tell whether a run has ended because the strategy has no more candidates, although `budget` allows more."""
    return (reason or ended_by(state)) == "enough" and budget.auto


def ended_by(state: State) -> str:
    """Return the reason that a run ended. Empty if the run has not ended, or was interrupted."""
    return "" if state.finished is None else state.finished.reason


def recorded_budget(header: RunStarted) -> Budget:
    """Return the budget in a header, or an unlimited budget if the header's budget cannot be read."""
    try:
        return msgspec.convert(header.settings.get("budget") or {}, Budget)
    except (msgspec.ValidationError, UsageError):
        return Budget()
