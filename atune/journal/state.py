"""The state of a run, folded from its events by the same code during the run, on resume and on replay."""

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
"""Latency in ms, key and index of a measured candidate."""
COMPILED_BEFORE = "compiled before"
"""`ArtifactBuilt.reason` of a library that an earlier part of the run compiled and counted."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """The folded state of a candidate. It has no cycles, so the garbage collector can skip it."""

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
    """Its share of its library's seconds."""
    parent: int | None = None
    """Index of an earlier candidate of the space with the same code."""
    refused: bool = False
    """Whether it is a baseline that a constraint refuses."""
    outcome: Outcome | None = None
    """The latest outcome of this candidate's code. Only the first candidate with the code has it."""
    surveyed: bool = False
    """This field and `further_layout` are as in `CandidateProposed`."""
    further_layout: bool = False
    rank: Rank | None = None
    """Its place in the ranking, if it is measured and may win."""

    @property
    def in_space(self) -> bool:
        """Whether it is a candidate of the space. The baseline is not, and no count includes it."""
        return self.index != BASELINE

    @property
    def may_win(self) -> bool:
        """Whether it was measured and may win. The baseline may win only if no constraint refuses it and its outputs
        were checked, because it may be a different program than the space's candidates.
        """
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
    """A candidate became the best so far, by first timing."""

    tried: int
    """Number of candidates that had an outcome by then, including this candidate."""
    seconds: float
    """Seconds since the run started, summed over the parts of a resumed run."""
    latency_ms: float
    index: int
    """Index of the candidate that the result credits."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Work of a worker or device, `on`, in seconds of the run. `candidates`: how many; `first`: the first's index."""

    on: str
    kind: Literal["lower", "build", "measure", "failed", "again", "final"]
    since: float
    until: float
    first: int
    candidates: int = 1


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of compiling (lowering and building), and seconds of first timings.

    `compile_s`: summed over compile workers. `benchmark_s`: summed over devices. `compile_wall_s`, `benchmark_wall_s`:
    seconds in which at least one worker or device was busy. None of these includes failed compiles, the survey, the
    comparison of a compiler state, or the final.
    """

    compile_s: float
    compile_wall_s: float
    benchmark_s: float
    benchmark_wall_s: float


class TimeSums:
    """Sums up the seconds of a run's parts, and keeps the spans of work of each worker and device."""

    def __init__(self) -> None:
        self._ended_s = self._part_s = self._part_started = 0.0
        self.spans: list[Span] = []
        self.parts: list[float] = []
        """Seconds at which each part but the first began."""
        self._began: dict[str, float] = {}
        """Seconds at which each device began to measure its current candidate."""

    @property
    def wall_s(self) -> float:
        """Seconds of all parts. A part without an end counts up to its last event."""
        return self._ended_s + self._part_s

    @property
    def stages(self) -> StageSeconds:
        """Seconds of compiling and of measuring."""
        compiling = [(span.since, span.until) for span in self.spans if span.kind in ("lower", "build")]
        measuring = [(span.since, span.until) for span in self.spans if span.kind in _MEASURED.values()]
        return StageSeconds(
            compile_s=round(sum(until - since for since, until in compiling), 3),
            compile_wall_s=round(_union_s(compiling), 3),
            benchmark_s=round(sum(until - since for since, until in measuring), 3),
            benchmark_wall_s=round(_union_s(measuring), 3),
        )

    def apply(self, event: Event) -> None:
        """Add an event."""
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
"""The kind of a device's `Span`, by the type of the event that ended the span."""


def _union_s(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of `spans`, in seconds."""
    total, end = 0.0, float("-inf")
    for low, high in sorted(spans):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total


class State:
    """The fold over a run's events: `apply` every event in order, and read the state at any time.

    Candidates with the same code form a class. The class has the latest outcome of any member, credited to the first
    member in the space's order. A baseline outside of the space is ranked if it may win, but no count includes it, and
    it wins only if a candidate of the space was also measured.
    """

    def __init__(self) -> None:
        self.header: RunStarted | None = None
        self.entries: dict[int, Entry] = {}
        self.counts: Counter[str] = Counter()
        """Number of candidates by `Status`, without ``remaining``."""
        self.kinds: Counter[str] = Counter()
        """Number of failed candidates by the kind of their failure."""
        self.doubted = False
        """Whether a part ended as ``mismatched``: see `RunFinished.reason`. Later parts try all candidates."""
        self.lowered = self.built = 0
        """Number of lowered candidates, and number of distinct codes with a library."""
        self._stored: set[int] = set()
        self.unbuilt = 0
        """Number of distinct codes that have an outcome without a library."""
        self.surveyed: SpaceSurveyed | None = None
        """Facts of the space for the strategy, if the space was surveyed."""
        self.compile_s: list[float] = []
        """Each compiled candidate's share of its library's seconds, sorted. Reused libraries do not count."""
        self.devices: dict[str, DeviceInfo] = {}
        self.memory_bytes = 0
        """Peak device memory of the device process that used the most memory."""
        self.references: dict[str, Timing] = {}
        """The reference's first timing, by device."""
        self.other_bits: set[int] = set()
        """Candidates that lack the default's bits on inputs drawn with further seeds."""
        self.bits_seeds = 1
        """Number of draws of the inputs on which finalists were compared with the default."""
        self.final: FinalOrdered | None = None
        self.final_losses = 0
        """Number of times that a device's process, or the whole program, died during a final."""
        self._in_final = False
        self.finished: RunFinished | None = None
        """The end of the latest part; None while it runs, and after an interruption."""
        self.interrupted: RunInterrupted | None = None
        self.resumed: RunResumed | None = None
        """The start of the latest part, if the run has several."""
        self.accepted = False
        """Whether the user accepted that a part continues although its work is not the header's."""
        self.warnings: list[str] = []
        self._improvements: list[Improvement] = []
        self.last_seq = -1
        self.last_mono = 0.0
        self.seconds = TimeSums()
        self.measuring: dict[int, str] = {}
        """The candidates that are being measured, or were when the program died. The values are their devices."""
        self._deaths: Counter[int] = Counter()
        self._ranking: list[Rank] = []
        """The measured candidates that may win, one per distinct code, sorted by latency."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> State:
        """Return the fold over `events`, in the order of their `seq`."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: Event) -> None:
        """Fold in an event. Events must come in the order of their `seq`."""
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
                self.measuring[event.index] = event.device
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
        """Fold in an event of the run as a whole, not of a candidate."""
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
        """Return the entry of candidate `index`, or an empty entry, which is not kept, for an unknown candidate."""
        return self.entries.get(index) or Entry(index)

    def first(self, index: int) -> Entry:
        """Return the first candidate, in the space's order, with the code of candidate `index`."""
        entry = self.entries.get(index) or Entry(index)
        while entry.parent is not None:
            entry = self.entries.get(entry.parent) or Entry(entry.parent)
        return entry

    def outcome(self, index: int) -> Outcome | None:
        """Return the latest outcome of candidate `index`, or of a candidate with the same code; None without one."""
        return self.first(index).outcome

    def ranked(self, most: int | None = None) -> list[CandidateMeasured]:
        """Return the measurements as reported, one for each distinct code, ordered by first timing, fastest first.

        Their `index` is the candidate that was compiled and ran, and has an artifact. `most`: return at most this many.
        """
        outcomes = (self.entries[index].outcome for _, _, index in self._ranking[:most])
        return [outcome for outcome in outcomes if isinstance(outcome, CandidateMeasured)]

    @property
    def best(self) -> tuple[int, float] | None:
        """Credited index and latency, in ms, of the best candidate by first timing; None if the space has none yet."""
        if not self.counts["measured"]:
            return None
        latency_ms, _, index = self._ranking[0]
        return index, latency_ms

    def best_over_time(self) -> tuple[Improvement, ...]:
        """Return each change of the best candidate, by first timing. Retracted and failed measurements do not count."""
        return tuple(msgspec.structs.replace(s, index=self.first(s.index).index) for s in self._improvements)

    @property
    def winner(self) -> int | None:
        """Index of the candidate that ran as the winner: the first finalist that may still win, or else the fastest.

        None if no candidate of the space is measured.
        """
        entries = self.final.entries if self.final else ()
        standing = (entry.index for entry in entries if self.first(entry.index).may_win)
        return None if self.best is None else next(standing, next((event.index for event in self.admitted(1)), None))

    @property
    def default_index(self) -> int | None:
        """The default configuration's index; None if there is no default, or if the run has not begun."""
        return None if self.header is None else self.header.default

    @property
    def default(self) -> CandidateMeasured | None:
        """The measurement of the default configuration, or of a candidate with the same code; None if there is none."""
        outcome = None if self.default_index is None else self.outcome(self.default_index)
        return outcome if isinstance(outcome, CandidateMeasured) else None

    @property
    def same_bits(self) -> bool:
        """Whether only candidates with the default's bits may win."""
        settings = {} if self.header is None else self.header.settings.get("benchmark", {})
        return settings.get("same_bits") is not None

    def has_bits(self, event: CandidateMeasured) -> bool:
        """Tell whether a measured candidate's outputs are known to have the default's bits at every call."""
        default = self.default
        if default is None or event.index in self.other_bits:
            return False
        equal = default.bits == event.bits and default.repeats and event.repeats
        return bool(event.bits) and (event is default or equal)

    def admitted(self, most: int | None = None) -> list[CandidateMeasured]:
        """Return `ranked`, but under `same_bits` only the candidates with the default's bits."""
        if not self.same_bits:
            return self.ranked(most)
        return [event for event in self.ranked() if self.has_bits(event)][:most]

    def deaths(self, index: int) -> int:
        """Return the number of times that the program died while it measured candidate `index`, including this part."""
        return self._deaths[index] + (index in self.measuring)

    @property
    def all_differ(self) -> bool:
        """Whether the default and the first candidates ran and all differ from the reference, which may be wrong."""
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
        """Number of distinct codes whose libraries an earlier run compiled."""
        return len({self.first(index).index for index in self._stored} - {BASELINE})

    @property
    def settled(self) -> int:
        """Number of candidates that need no more work, because they are measured, failed, pruned or duplicates."""
        return sum(self.counts.values())

    @property
    def wall_s(self) -> float:
        """Seconds of all parts of the run. A part without an end counts up to its last event."""
        return self.seconds.wall_s

    def _made(self, index: int) -> Entry:
        if index not in self.entries:
            refused = index == BASELINE and self.header is not None and bool(self.header.refused)
            self.entries[index] = Entry(index, refused=refused)
        return self.entries[index]

    def _note_library(self, event: ArtifactBuilt) -> None:
        """Count a group's library once for each distinct code in it."""
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
        """Retract the measurements of `device`, because its latencies do not compare with the other devices'."""
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
    """Return the header of a run that has begun. Readers refuse a journal without a header."""
    assert state.header is not None, "the header is the first event"
    return state.header


def proposed(state: State) -> list[Entry]:
    """Return the candidates of the space that were proposed, in the order of their proposals."""
    return [entry for entry in state.entries.values() if entry.key and entry.in_space and not entry.surveyed]


def finished(state: State, budget: Budget, reason: str = "") -> bool:
    """Tell whether a run has ended, or ends now for `reason`, and `budget` admits no further candidates."""
    if (reason := reason or ended_by(state)) in ("", "stopped"):
        return False
    done = [entry for entry in proposed(state) if state.outcome(entry.index) is not None]
    most = budget.most(state.total)
    used_up = most is not None and sum(not entry.further_layout for entry in done) >= most
    used_up |= all_proposed(state, budget, reason)
    settled = len(done) + sum(entry.surveyed for entry in state.entries.values())
    return settled >= state.total or used_up or budget.used_up(state.wall_s)


def all_proposed(state: State, budget: Budget, reason: str = "") -> bool:
    """Tell whether a run has ended because its strategy proposes no more candidates, even if `budget` admits more."""
    return (reason or ended_by(state)) == "enough" and budget.auto


def ended_by(state: State) -> str:
    """Return the reason that a run ended; empty if it has not ended, or was interrupted."""
    return "" if state.finished is None else state.finished.reason


def recorded_budget(header: RunStarted) -> Budget:
    """Return the budget in a header, or an unlimited budget if it cannot be read."""
    try:
        return msgspec.convert(header.settings.get("budget") or {}, Budget)
    except (msgspec.ValidationError, UsageError):
        return Budget()
