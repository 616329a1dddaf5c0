"""A journal as one HTML page. It needs no network, no other file and no code of the workload."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
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
from atune.journal.reader import JournalReader
from atune.journal.result import TuneResult
from atune.journal.state import State
from atune.model.candidate import printable
from atune.model.measurement import Timing
from atune.reporting.candidates import candidates_section
from atune.reporting.hosts import host_of
from atune.reporting.page import (
    environment_section,
    failures_section,
    head_section,
    page_title,
    search_section,
    warnings_section,
)

SPANS = 6000
"""Most spans that the timeline draws. A longer run shows its longest spans."""

POINTS = 2000
"""Most points per device in the drawings of clocks. Points with lowered clocks take precedence."""

Span = tuple[str, float, float, str]
Point = tuple[float, int | None, int | None, int | None, str]
"""Seconds since the run's start, SM and memory clock in MHz, temperature in °C, and why the clocks were lowered."""


def report(journal: str | Path) -> str:
    """Return the page for `journal`. Raises `JournalError` if it cannot be read."""
    return page_of(JournalReader(journal), Path(journal))


def page_of(events: Iterable[Event], journal: Path | None = None) -> str:
    """Return the page for a run's events, in order; `journal` is where they lie, for the reader of the page."""
    state, timeline, clocks = State(), Timeline(), Clocks()
    for event in events:
        state.apply(event)
        timeline.add(event)
        clocks.add(event)
    result = TuneResult(state, journal, replayed=True)
    page = (Path(__file__).with_name("report_page.html")).read_text(encoding="utf-8")
    # Only "<" can end a script element or begin a comment in it, and a journal may come from a stranger.
    data = json.dumps(_data(result, timeline, clocks), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "@TITLE@": escape(page_title(result)),
        "@BEFORE@": _before(result),
        "@AFTER@": _after(result, state),
        "@DATA@": data,
    }
    return re.sub("|".join(parts), lambda place: parts[place[0]], page)  # one pass: texts may hold "@DATA@"


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
        measuring = _union([span for spans in self.device.values() for span in spans if span[0] != "final"])
        compiling = _union([span for spans in self.compile.values() for span in spans])
        both, i = 0.0, 0
        for low, high in measuring:
            while i < len(compiling) and compiling[i][1] <= low:
                i += 1
            j = i
            while j < len(compiling) and compiling[j][0] < high:
                both += min(high, compiling[j][1]) - max(low, compiling[j][0])
                j += 1
        return sum(high - low for low, high in measuring), both

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

    def data(self) -> dict[str, Any]:
        """Return the data of the page's drawing: thinned points by device, and a sentence."""
        shown = []
        lowered = total = 0
        for name, points in sorted(self.devices.items()):
            why = [p for p in points if p[4]]
            lowered, total = lowered + len(why), total + len(points)
            rest = [p for p in points if not p[4]]
            step = max(1, -(-len(rest) // max(1, POINTS - len(why[:POINTS]))))
            chosen = sorted([*why[:POINTS], *rest[::step]], key=lambda p: p[0])
            shown.append({"name": printable(f"device {name}"), "points": chosen})
        text = f"Read from the driver right after each of {total} timings. "
        text += f"After {lowered} the clocks were lowered (red)." if lowered else "The clocks were never lowered."
        return {"devices": shown, "text": text}

    def _timed(self, device: str, mono: float, timing: Timing) -> None:
        if (seen := timing.conditions) is not None:
            why = printable(", ".join(seen.throttle))
            point = (round(mono, 3), seen.sm_mhz, seen.memory_mhz, seen.temperature_c, why)
            if any(value is not None for value in point[1:4]):
                self.devices.setdefault(device, []).append(point)


def _union(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return the union of the spans as disjoint intervals, in order."""
    found: list[tuple[float, float]] = []
    for _, low, high, _ in sorted(spans, key=lambda span: span[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _before(result: TuneResult) -> str:
    """Return what stands before the plots."""
    return head_section(result) + failures_section(result) + search_section(result)


def _after(result: TuneResult, state: State) -> str:
    """Return what stands behind the plots."""
    return candidates_section(result) + warnings_section(result) + environment_section(result, state)


def _data(result: TuneResult, timeline: Timeline, clocks: Clocks) -> dict[str, Any]:
    """Return what the page's script draws."""
    final = {entry.index for entry in result.final}
    records = [
        {"config": r.config, "latency_ms": r.latency_ms, "same_as": r.same_as, "final": r.index in final}
        for r in result.records
        if r.status in ("measured", "duplicate")
    ]
    return {
        "reference_ms": result.reference_ms,
        "records": records,
        "timeline": _timeline(timeline),
        "clocks": clocks.data(),
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    def place(row: tuple[str, list[Span]]) -> tuple[str, int, str]:
        return host_of(row[0]), len(row[0]), row[0]  # sorts compile-10 after compile-9

    devices = [(f"device {name}", spans) for name, spans in timeline.device.items()]
    rows = sorted(timeline.compile.items(), key=place) + sorted(devices, key=place)
    n = sum(len(spans) for _, spans in rows)
    text = "Grey is lowering, blue compiling, orange measuring, green the final, red a failure on the device."
    if n > SPANS:
        lengths = sorted((span[2] - span[1] for _, spans in rows for span in spans), reverse=True)
        rows = [(name, [s for s in spans if s[2] - s[1] >= lengths[SPANS - 1]][:SPANS]) for name, spans in rows]
        text += f" Only the {SPANS} longest of {n} spans are shown."
    measuring_s, both_s = timeline.overlap()
    if measuring_s:
        text += (
            f" Devices measured for {measuring_s:.1f} s. Workers compiled in {both_s / measuring_s:.0%} of that time."
        )
    shown = [{"name": printable(name), "spans": spans} for name, spans in rows]
    return {"rows": shown, "parts": timeline.parts, "end_s": timeline.end_s, "text": text}
