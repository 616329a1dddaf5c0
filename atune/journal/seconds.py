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


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of compiling, which is lowering and building, and of first timings.

    What failed to compile, the survey, the comparison of a compiler state and the final are not in them.
    """

    compile_s: float
    """Summed over compile workers."""
    compile_wall_s: float
    """In which at least one of them compiled."""
    benchmark_s: float
    """Summed over devices."""
    benchmark_wall_s: float
    """In which at least one of them measured."""


class Seconds:
    """Sums up the seconds of a run's parts, and of its stages over all parts."""

    def __init__(self) -> None:
        self._ended_s = self._part_s = self._part_started = 0.0
        self._compile: list[tuple[float, float]] = []
        self._benchmark: list[tuple[float, float]] = []
        self._began: dict[str, float] = {}
        """When each device took the candidate that it measures."""

    @property
    def wall_s(self) -> float:
        """Of all parts. A part without an end counts up to its last event."""
        return self._ended_s + self._part_s

    @property
    def stages(self) -> StageSeconds:
        """Seconds of the two stages."""
        return StageSeconds(
            compile_s=round(sum(high - low for low, high in self._compile), 3),
            compile_wall_s=round(_union_s(self._compile), 3),
            benchmark_s=round(sum(high - low for low, high in self._benchmark), 3),
            benchmark_wall_s=round(_union_s(self._benchmark), 3),
        )

    def apply(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case RunResumed():
                self._end_part(self._part_s)  # adds nothing if the previous part ended properly
                self._part_started = event.mono
                self._began.clear()
                return
            case CandidateLowered() | ArtifactBuilt():
                if event.seconds and getattr(event, "reason", "") != FOUND:
                    self._compile.append((max(0.0, event.mono - event.seconds), event.mono))
            case BenchmarkStarted():
                self._began[event.device] = event.mono
            case CandidateMeasured() | BenchmarkFailed() | BenchmarkRepeated():
                if (began := self._began.pop(event.device, None)) is not None:
                    self._benchmark.append((began, event.mono))
        self._part_s = max(self._part_s, event.mono - self._part_started)
        if isinstance(event, RunFinished | RunInterrupted):
            self._end_part(event.wall_s)

    def _end_part(self, wall_s: float) -> None:
        self._ended_s += wall_s
        self._part_s, self._part_started = 0.0, float("inf")


def _union_s(spans: list[tuple[float, float]]) -> float:
    """Return the seconds in which at least one of `spans` was."""
    total, end = 0.0, float("-inf")
    for low, high in sorted(spans):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total
