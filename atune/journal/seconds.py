"""Where a run's seconds went, folded from its events: all of them, and those of compiling and of measuring."""

from __future__ import annotations

import msgspec

from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    CandidateLowered,
    CandidateMeasured,
    Event,
    RunFinished,
    RunInterrupted,
    RunResumed,
)

FOUND = "compiled before"
"""The reason of an `ArtifactBuilt` whose library this run has built already: its seconds are known."""


class WallTime:
    """Sums up the seconds of a run's parts. A part without an end counts up to its last event."""

    def __init__(self) -> None:
        self._ended_s = 0.0
        """Of the parts that have ended."""
        self._part_s = 0.0
        self._part_started = 0.0

    @property
    def seconds(self) -> float:
        return self._ended_s + self._part_s

    def apply(self, event: Event) -> None:
        if isinstance(event, RunResumed):
            self._end_part(self._part_s)  # adds nothing if the previous part ended properly
            self._part_started = event.mono
            return
        self._part_s = max(self._part_s, event.mono - self._part_started)
        if isinstance(event, (RunFinished, RunInterrupted)):
            self._end_part(event.wall_s)

    def _end_part(self, wall_s: float) -> None:
        self._ended_s += wall_s
        self._part_s, self._part_started = 0.0, float("inf")


class Busy:
    """Sums up spans of time, which come in the order of their ends."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of all spans."""
        self.wall_s = 0.0
        """Of their union."""
        self._union: list[tuple[float, float]] = []
        """Their union, as disjoint spans in order."""

    def add(self, low: float, high: float) -> None:
        """Add a span."""
        self.seconds += high - low
        while self._union and self._union[-1][1] >= low:
            first, last = self._union.pop()
            self.wall_s -= last - first
            low, high = min(low, first), max(high, last)
        self._union.append((low, high))
        self.wall_s += high - low


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of compiling, which is lowering and building, and of first timings.

    What failed to compile, the survey, the proof and the final are not in them.
    """

    compile_s: float
    """Summed over compile workers."""
    compile_wall_s: float
    """In which at least one of them compiled."""
    benchmark_s: float
    """Summed over devices."""
    benchmark_wall_s: float
    """In which at least one of them measured."""


class Stages:
    """Sums up the seconds of the two stages, over all parts of a run."""

    def __init__(self) -> None:
        self._compile, self._benchmark = Busy(), Busy()
        self._began: dict[str, float] = {}
        """When each device took the candidate that it measures."""

    @property
    def seconds(self) -> StageSeconds:
        return StageSeconds(
            compile_s=round(self._compile.seconds, 3),
            compile_wall_s=round(self._compile.wall_s, 3),
            benchmark_s=round(self._benchmark.seconds, 3),
            benchmark_wall_s=round(self._benchmark.wall_s, 3),
        )

    def apply(self, event: Event) -> None:
        match event:
            case CandidateLowered() | ArtifactBuilt():
                if event.seconds and getattr(event, "reason", "") != FOUND:
                    self._compile.add(max(0.0, event.mono - event.seconds), event.mono)
            case BenchmarkStarted():
                self._began[event.device] = event.mono
            case CandidateMeasured() | BenchmarkFailed() | BenchmarkRepeated():
                if (began := self._began.pop(event.device, None)) is not None:
                    self._benchmark.add(began, event.mono)
            case RunResumed():
                self._began.clear()
