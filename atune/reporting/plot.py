"""Pictures as SVG: latencies by rank, and round values for axes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

import msgspec

from atune.journal.result import Record, Result
from atune.model.candidate import describe_config

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 14, 30
"""Margins, in pixels."""
MEASURED, FINAL, REFERENCE, LINE, TEXT = "#3b76ea", "#c2620a", "#15803d", "#9aa3b5", "#757f92"
"""Colours that stand out on white and on black alike."""
POINTS = 3000
"""About how many candidates are drawn at most; finalists always are."""


class Plot(msgspec.Struct, frozen=True):
    """A picture: `svg` is its text."""

    svg: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, such as ``latencies.svg``."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Plot, {len(self.svg):,} characters of SVG>"


def rank_plot(result: Result) -> Plot:
    """Return all measured latencies by rank, fastest first, on a log scale, with the reference as a line."""
    measured = by_latency(result.records)
    if not measured:
        return Plot(
            _svg([_text(WIDTH / 2, HEIGHT / 2, "No candidate was measured.", "middle")], "latency against rank")
        )
    reference = [] if (reference_ms := drawable(result.reference_ms)) is None else [reference_ms]
    known = [record.latency_ms or 0.0 for record in measured] + reference
    low = min(known)
    y, drawn = _levels(low, max(known))
    if reference:
        drawn.append(_line(y(reference[0]), REFERENCE, "stroke-width='2' stroke-dasharray='6 4'", "reference"))
    finalists, step = {entry.index for entry in result.final}, -(-len(measured) // POINTS)
    for rank, record in enumerate(measured):
        if rank % step == 0 or record.index in finalists:
            x = LEFT + (WIDTH - LEFT - RIGHT) * rank / max(1, len(measured) - 1)
            colour, radius = (FINAL, 4.5) if record.index in finalists else (MEASURED, 3)
            text = f"candidate {record.index}: {record.latency_ms:.4g} ms, {describe_config(record.config)}"
            drawn.append(_point(round(x, 1), y(record.latency_ms or low), colour, radius, text))
    drawn.append(_text(WIDTH - RIGHT, HEIGHT - 8, f"rank 1 to {len(measured):,}", "end"))
    return Plot(_svg(drawn, "latency against rank"))


def _levels(low: float, high: float) -> tuple[Callable[[float], float], list[str]]:
    """Return where latencies from `low` to `high` lie on a log scale, and round ones as drawn lines with labels."""
    room = math.log(high / low) or 0.01

    def y(latency_ms: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(latency_ms / low) / room, 1)

    drawn = []
    for level in log_ticks(low, high):
        drawn += [_line(y(level), LINE, "stroke-opacity='.4'"), _text(LEFT - 6, y(level) + 4, f"{level:.6g} ms", "end")]
    return y, drawn


def by_latency(records: Iterable[Record]) -> list[Record]:
    """Return the measured records whose latency can be drawn, the fastest first."""
    timed = (record for record in records if record.status == "measured" and drawable(record.latency_ms) is not None)
    return sorted(timed, key=lambda record: (record.latency_ms or 0.0, record.index))


def drawable(latency_ms: float | None) -> float | None:
    """Return a latency that has a place on a logarithmic axis; None for any other."""
    return latency_ms if latency_ms is not None and latency_ms > 0 and math.isfinite(latency_ms) else None


def _point(x: float, y: float, colour: str, radius: float, title: str) -> str:
    return f"<circle cx='{x}' cy='{y}' r='{radius}' fill='{colour}'><title>{escape(title)}</title></circle>"


def _line(y: float, colour: str, style: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' stroke='{colour}' {style}>{inside}</line>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    font = "font-family='system-ui, sans-serif' font-size='11'"
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' fill='{TEXT}' {font}>{escape(text)}</text>"


def _svg(parts: list[str], label: str) -> str:
    space = "xmlns='http://www.w3.org/2000/svg'"
    size = f"width='{WIDTH}' height='{HEIGHT}' style='max-width: 100%; height: auto'"
    head = f"<svg {space} {size} viewBox='0 0 {WIDTH} {HEIGHT}' role='img'"
    return f"{head} aria-label='{label}'>{''.join(parts)}</svg>"


MOST_TICKS = 8
"""Ticks of a logarithmic axis."""


def linear_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round values from `low` to `high`, equally far apart; about `wanted` of them."""
    if not (high > low and math.isfinite(high - low)):
        return [low]
    raw = (high - low) / wanted
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(k * base for k in (1, 2, 5, 10) if k * base >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high`, which are above zero, for a logarithmic axis; `MOST_TICKS` at most."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [float(f"{k * 10.0**e:.6g}") for e in powers for k in steps]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) <= MOST_TICKS:
            break
    if len(found) > MOST_TICKS:
        found = found[:: -(-len(found) // MOST_TICKS)]
    return found if len(found) > 1 else linear_ticks(low, high, 4)
