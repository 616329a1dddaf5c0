"""The data of the report's plots, which `plots.js` draws: candidates, the best over time, and who did what when."""

from __future__ import annotations

import json
import math
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
    RunResumed,
)
from atune.journal.result import Record, Result
from atune.model.candidate import printable
from atune.reporting.importance import Importance

CANDIDATES = 5000
"""Most candidates that the plots show, fastest first."""
LONG = 24
"""Characters of an axis value from which on a plot cuts it."""
SPANS = 3000
"""Most spans that the timeline draws. A longer run shows its longest spans."""

Span = tuple[str, float, float, str]


def plot_data(result: Result, mattered: Importance | None, timeline: Timeline) -> dict[str, Any]:
    """Return what the page's script draws. Each candidate names its values by their place in `axes`."""
    measured = by_latency(result.all_records)
    axes = _axes([record for record in measured if record is not result.baseline], mattered)
    final = {entry.index for entry in result.final}
    places = [{label: i for i, label in enumerate(axis["labels"])} for axis in axes]
    rows = [
        [r.index, r.latency_ms, int(r.index in final)]
        + [place.get(_label(r, axis["name"])) for axis, place in zip(axes, places, strict=True)]
        for r in measured[:CANDIDATES]
    ]
    default = result.default
    return {
        "axes": [{"name": axis["name"], "labels": _cut(axis["labels"])} for axis in axes],
        "candidates": rows,
        "left_out": len(measured) - len(rows),
        "winner": result.best_index,
        "latency_ms": result.latency_ms,
        "reference_ms": drawable(result.reference_ms),
        "default": None if default is None else default.index if default.same_as is None else default.same_as,
        "default_ms": None if default is None else drawable(default.latency_ms),
        "steps": [[s.seconds, s.latency_ms, s.tried, s.index] for s in result.best_over_time if drawable(s.latency_ms)],
        "end_s": result.wall_s,
        "timeline": timeline.data(),
    }


def by_latency(records: Iterable[Record]) -> list[Record]:
    """Return the measured records whose latency can be drawn, the fastest first."""
    timed = (record for record in records if record.status == "measured" and drawable(record.latency_ms) is not None)
    return sorted(timed, key=lambda record: (record.latency_ms or 0.0, record.index))


def drawable(latency_ms: float | None) -> float | None:
    """Return a latency that has a place on a logarithmic axis; None for any other."""
    return latency_ms if latency_ms is not None and latency_ms > 0 and math.isfinite(latency_ms) else None


def _axes(records: Sequence[Record], mattered: Importance | None) -> list[dict[str, Any]]:
    """Return the axes of several values, those that mattered most first, each with its values in order, as text."""
    names = list(mattered.shares) if mattered is not None else []
    names += [name for name in dict.fromkeys(n for r in records for n in r.config) if name not in names]
    axes = [{"name": n, "labels": in_order(r.config[n] for r in records if n in r.config)} for n in names]
    return [axis for axis in axes if len(axis["labels"]) > 1]


def in_order(values: Iterable[Any]) -> list[str]:
    """Return values as text, each once: numbers by size, then the others."""
    known = {value_text(value): value for value in values}

    def place(label: str) -> tuple[bool, float, str]:
        value = known[label]
        number = isinstance(value, int | float) and math.isfinite(value)
        return not number, value if number else 0.0, label

    return sorted(known, key=place)


def value_text(value: Any) -> str:
    """Return an axis value as text: a text, a truth and None as they are, anything else as JSON."""
    return printable(str(value) if isinstance(value, str | bool | None) else json.dumps(value, default=str))


def _label(record: Record, name: str) -> str | None:
    return value_text(record.config[name]) if name in record.config else None


def _cut(labels: list[str]) -> list[str]:
    """Return labels with the middle of long ones left out, as long as all still differ."""
    short = [v if len(v) <= LONG else f"{v[: LONG // 2]}…{v[1 - LONG // 2 :]}" for v in labels]
    return short if len(set(short)) == len(labels) else labels


def host_of(device: str) -> str:
    """Return the host in a device's id, such as ``node-0`` of ``node-0/1``; empty on one machine."""
    return device.rpartition("/")[0]


class Timeline:
    """Collects the activities of each compile worker and device. Times are in seconds since the run's start."""

    def __init__(self) -> None:
        self.compile: dict[str, list[Span]] = {}
        self.device: dict[str, list[Span]] = {}
        self.parts: list[float] = []
        self._started: dict[str, float] = {}

    def add(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case BenchmarkStarted():
                self._started[event.device] = event.mono
            case CandidateMeasured() | BenchmarkFailed():
                since = self._started.pop(event.device, event.mono)
                kind = "measure" if isinstance(event, CandidateMeasured) else "failed"
                _span(self.device, event.device, kind, since, event.mono, f"candidate {event.index}")
            case CandidateLowered():
                since = max(0.0, event.mono - event.seconds)
                _span(self.compile, event.worker, "lower", since, event.mono, f"candidate {event.index}")
            case ArtifactBuilt():
                n, since = len(event.indices), max(0.0, event.mono - event.seconds)
                what = f"candidate {event.indices[0]}" if n == 1 else f"{n} candidates"
                _span(self.compile, event.worker, "build", since, event.mono, what)
            case FinalOrdered():  # it began when nothing compiled and nothing else was measured any more
                ends = [spans[-1][2] for spans in (*self.compile.values(), *self.device.values())]
                begun = min(max([0.0, *ends, *self.parts[-1:]]), event.mono)
                what = f"of {len(event.entries)} candidates"
                _span(self.device, event.device, "final", begun, event.mono, what)
            case RunResumed():
                self.parts.append(round(event.mono, 4))
                self._started.clear()

    def data(self) -> dict[str, Any]:
        """Return the data of the page's drawing: a row for each worker and device, each host's next to each other."""

        def place(row: tuple[str, list[Span]]) -> tuple[str, int, str]:
            return host_of(row[0]), len(row[0]), row[0]  # sorts compile-10 after compile-9

        devices = [(f"device {name}", spans) for name, spans in self.device.items()]
        rows = sorted(self.compile.items(), key=place) + sorted(devices, key=place)
        spans, text = [span for _, found in rows for span in found], ""
        if len(spans) > SPANS:
            least = sorted((span[2] - span[1] for span in spans), reverse=True)[SPANS - 1]
            rows = [(name, [s for s in found if s[2] - s[1] >= least][:SPANS]) for name, found in rows]
            text = f"Only the {SPANS:,} longest of {len(spans):,} spans are drawn."
        end_s = max((span[2] for span in spans), default=0.0)
        return {
            "rows": [{"name": name, "spans": found} for name, found in rows],
            "parts": self.parts,
            "end_s": end_s,
            "text": text,
        }


def _span(rows: dict[str, list[Span]], name: str, kind: str, since: float, until: float, what: str) -> None:
    rows.setdefault(name, []).append((kind, round(since, 4), round(until, 4), what))
