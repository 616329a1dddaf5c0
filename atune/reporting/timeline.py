"""What workers and devices did when, and how fast devices were clocked: for the report's page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkStarted,
    CandidateLowered,
    CandidateMeasured,
    Event,
    FinalOrdered,
    ReferenceMeasured,
    RunResumed,
)
from atune.journal.seconds import Busy
from atune.model.candidate import printable
from atune.model.measurement import Timing
from atune.reporting.hosts import host_of

SPANS = 3000
"""Most spans that the timeline draws. A longer run shows its longest spans."""

POINTS = 1000
"""Most points per device in the drawings of clocks. Points with lowered clocks take precedence."""

MOVED = 0.02
"""Share of its highest value by which a clock must have fallen to be drawn."""

Span = tuple[str, float, float, str]
Point = tuple[float, int | None, int | None, int | None, str]
"""Seconds since the run's start, SM and memory clock in MHz, temperature in °C, and why the clocks were lowered."""


class Timeline:
    """Collects the activities of each compile worker and device. Times are in seconds since the run's start."""

    def __init__(self) -> None:
        self.compile: dict[str, list[Span]] = {}
        self.device: dict[str, list[Span]] = {}
        self.parts: list[float] = []
        self.end_s = 0.0
        self._started: dict[str, tuple[int, float]] = {}

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.end_s = max(self.end_s, event.mono)
        match event:
            case BenchmarkStarted():
                self._started[event.device] = (event.index, event.mono)
            case CandidateMeasured() | BenchmarkFailed():
                index, since = self._started.pop(event.device, (None, event.mono))
                if index == event.index:
                    kind = "measure" if isinstance(event, CandidateMeasured) else "failed"
                    span = (kind, round(since, 4), round(event.mono, 4), f"candidate {index}")
                    self.device.setdefault(event.device, []).append(span)
            case CandidateLowered():
                self._compiled(event, "lower", f"candidate {event.index}")
            case ArtifactBuilt():
                what = (
                    f"candidate {event.indices[0]}" if len(event.indices) == 1 else f"{len(event.indices)} candidates"
                )
                self._compiled(event, "build", what)
            case FinalOrdered():
                self._final(event)
            case RunResumed():
                self.parts.append(round(event.mono, 4))
                self._started.clear()

    def overlap(self) -> tuple[float, float]:
        """Return the seconds in which a device measured, and the part of them in which a worker compiled."""
        measuring = _union(span for spans in self.device.values() for span in spans if span[0] != "final")
        compiling = _union(span for spans in self.compile.values() for span in spans)
        both, i = 0.0, 0
        for low, high in measuring:
            while i < len(compiling) and compiling[i][1] <= low:
                i += 1
            j = i
            while j < len(compiling) and compiling[j][0] < high:
                both += min(high, compiling[j][1]) - max(low, compiling[j][0])
                j += 1
        return sum(high - low for low, high in measuring), both

    def data(self) -> dict[str, Any]:
        """Return the data of the page's drawing: a row for each worker and device, each host's next to each other."""

        def place(row: tuple[str, list[Span]]) -> tuple[str, int, str]:
            return host_of(row[0]), len(row[0]), row[0]  # sorts compile-10 after compile-9

        devices = [(f"device {name}", spans) for name, spans in self.device.items()]
        rows = sorted(self.compile.items(), key=place) + sorted(devices, key=place)
        n, text = sum(len(spans) for _, spans in rows), ""
        if n > SPANS:
            lengths = sorted((span[2] - span[1] for _, spans in rows for span in spans), reverse=True)
            rows = [(name, [s for s in spans if s[2] - s[1] >= lengths[SPANS - 1]][:SPANS]) for name, spans in rows]
            text = f"Only the {SPANS:,} longest of {n:,} spans are drawn. "
        measuring_s, both_s = self.overlap()
        if measuring_s:
            text += (
                f"Devices measured for {measuring_s:.1f} s; during {100 * both_s / measuring_s:.0f} % of that time, "
                "workers were compiling other candidates."
            )
        shown = [{"name": printable(name), "spans": spans} for name, spans in rows]
        return {"rows": shown, "parts": self.parts, "end_s": self.end_s, "text": text}

    def _final(self, event: FinalOrdered) -> None:
        """Take in the final, which began when nothing compiled and nothing else was measured any more."""
        ends = [spans[-1][2] for spans in (*self.compile.values(), *self.device.values())]
        begun = max([0.0, *ends, *self.parts[-1:]])
        span = ("final", min(begun, event.mono), round(event.mono, 4), f"of {len(event.entries)} candidates")
        self.device.setdefault(event.device, []).append(span)

    def _compiled(self, event: CandidateLowered | ArtifactBuilt, kind: str, what: str) -> None:
        since = max(0.0, event.mono - event.seconds)
        self.compile.setdefault(event.worker, []).append((kind, round(since, 4), round(event.mono, 4), what))


class Clocks:
    """Collects the clocks and temperatures that NVML reported right after each timing, by device."""

    def __init__(self) -> None:
        self.devices: dict[str, list[Point]] = {}

    def add(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case ReferenceMeasured() | CandidateMeasured():
                self._timed(event.device, event.mono, event.timing)
            case FinalOrdered(entries=(first, *_)):
                self._timed(event.device, event.mono, first.timing)

    def data(self) -> list[dict[str, Any]]:
        """Return the data of the page's drawing, thinned points by device. Empty where no clock moved."""
        if not self.moved:
            return []
        shown = []
        for name, points in sorted(self.devices.items()):
            why = [p for p in points if p[4]]
            rest = [p for p in points if not p[4]]
            step = max(1, -(-len(rest) // max(1, POINTS - len(why[:POINTS]))))
            chosen = sorted([*why[:POINTS], *rest[::step]], key=lambda p: p[0])
            shown.append({"name": printable(f"device {name}"), "points": chosen})
        return shown

    @property
    def moved(self) -> bool:
        """Whether the driver lowered a clock, or one was lower than at another time by more than `MOVED`."""
        for points in self.devices.values():
            known = [_values(points, field) for field in (1, 2)]
            if any(p[4] for p in points) or any(min(v) < (1 - MOVED) * max(v) for v in known if v):
                return True
        return False

    @property
    def text(self) -> str:
        """What was read, as sentences. Empty where the driver reported nothing."""
        points = [point for points in self.devices.values() for point in points]
        if not points:
            return ""
        named = (("SM clock", 1, "MHz"), ("memory clock", 2, "MHz"), ("temperature", 3, "°C"))
        read = [f"{name} {_range(points, field)} {unit}" for name, field, unit in named if _range(points, field)]
        lowered = sum(1 for point in points if point[4])
        end = f"After {lowered:,} the driver had lowered the clocks." if lowered else "The clocks were never lowered."
        return f"Read from the driver after each of {len(points):,} timings: {', '.join(read)}. {end}"

    def _timed(self, device: str, mono: float, timing: Timing) -> None:
        if (seen := timing.conditions) is not None:
            why = printable(", ".join(seen.throttle))
            point = (round(mono, 3), seen.sm_mhz, seen.memory_mhz, seen.temperature_c, why)
            if any(value is not None for value in point[1:4]):
                self.devices.setdefault(device, []).append(point)


def _values(points: Sequence[Point], field: int) -> list[int]:
    return [value for point in points if isinstance(value := point[field], int)]


def _range(points: Sequence[Point], field: int) -> str:
    values = _values(points, field)
    return " to ".join(map(str, sorted({min(values), max(values)}))) if values else ""


def _union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Return the union of the spans as disjoint intervals, in order."""
    busy = Busy()
    for _, low, high, _ in sorted(spans, key=lambda span: span[2]):
        busy.add(low, high)
    return busy.union
