"""What workers and devices did when: for the report's page."""

from __future__ import annotations

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
from atune.model.candidate import printable

SPANS = 3000
"""Most spans that the timeline draws. A longer run shows its longest spans."""

Span = tuple[str, float, float, str]


def host_of(device: str) -> str:
    """Return the host in a device's id, such as ``node-0`` of ``node-0/1``; empty on one machine."""
    return device.rpartition("/")[0]


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
            text = f"Only the {SPANS:,} longest of {n:,} spans are drawn."
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
