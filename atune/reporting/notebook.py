"""Records and results as a notebook shows them: small pieces of HTML without a script."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from atune.journal.result import Record, Result
from atune.model.candidate import describe_config, printable
from atune.reporting.candidates import columns, table
from atune.reporting.export import ranking
from atune.reporting.plots import by_latency, drawable
from atune.reporting.summary import (
    counts_line,
    default_line,
    failure_groups,
    first_failure_lines,
    group_lines,
    latency_line,
    no_winner_line,
    ties_line,
)

ROWS = 10
"""Candidates in a result's table."""
CARD = "border: 1px solid #9aa3b5; border-radius: 6px; padding: .5em 1em; margin: .3em 0; display: inline-block"
BREAKING = "overflow-wrap: break-word"
"""Long paths and names of types do not make the cell's output wider."""
CELL = "text-align: left; padding: .1em .8em .1em 0"
WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 14, 30
"""Margins, in pixels."""
MEASURED, FINAL, REFERENCE, LINE, TEXT = "#3b76ea", "#c2620a", "#15803d", "#9aa3b5", "#757f92"
"""Colours that stand out on white and on black alike."""
POINTS = 3000
"""About how many candidates are drawn at most; finalists always are."""


def enable() -> None:
    """Register with IPython how results and records are shown. Does nothing elsewhere.

    `import atune` calls this where IPython is running. Call it yourself where IPython starts later.
    """
    ipython = sys.modules.get("IPython")
    formatter = getattr(ipython.get_ipython(), "display_formatter", None) if ipython is not None else None
    if formatter is not None:
        html = formatter.formatters["text/html"]
        html.for_type(Result, result_html)
        html.for_type(Record, record_html)


def result_html(result: Result) -> str:
    """Return a result: the winner, the first candidates of the ranking, the commonest failures, and a plot."""
    parts = [_card(result), f"<p>Candidates {counts_line(result)}</p>"]
    if result.best is not None:
        parts += [_ranked(result), rank_plot(result)]
    groups = failure_groups(result.records)
    parts += [f"<p>{escape(line)}</p>" for line in group_lines(groups, 3)]
    if result.best is None and (text := first_failure_lines(result, groups)):
        parts.append(f'<pre tabindex="0" style="overflow-x: auto">{escape(chr(10).join(text))}</pre>')
    return f'<div style="{BREAKING}">{"".join(parts)}</div>'


def record_html(record: Record) -> str:
    """Return a record: what became of a candidate, and what is known of it."""
    rows: list[tuple[str, Any]] = [("status", record.status), *record.config.items()]
    if record.latency_ms is not None:
        rows.append(("latency", f"{record.latency_ms:.4g} ms"))
    if record.timing is not None:
        rows.append(("spread", f"{100 * record.timing.spread:.1f} % of {len(record.timing.samples_us)} samples"))
    rows += [("same code as", record.same_as), ("failure", record.kind), ("reason", record.message)]
    for part in (record.machine, record.facts):
        for name in ("registers", "stack_bytes", "code_bytes", "smem_bytes", "threads"):
            rows.append((name, getattr(part, name, None)))
    if record.roofline is not None:
        rows.append(("roofline", record.roofline.describe()))
    known = [(name, value) for name, value in rows if value is not None and value != ""]
    return f"<b>Candidate {record.index}</b>" + _table(known)


def _card(result: Result) -> str:
    name = printable(result.header.workload) if result.header else "no run"
    if result.best is None:
        return f'<div style="{CARD}"><b>{escape(name)}</b>: {no_winner_line(result)}</div>'
    first, *rest = filter(None, (latency_line(result), default_line(result), ties_line(result)))
    below = "".join(f"<br>{escape(line)}" for line in [describe_config(result.best.config), *rest])
    return f'<div style="{CARD}"><b>{escape(name)}: {escape(first)}</b>{below}</div>'


def _ranked(result: Result) -> str:
    first = table(ranking(result)[:ROWS], columns(result))
    return f'<div tabindex="0" style="overflow-x: auto">{first}</div>'


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = (
        f'<tr><th style="{CELL}">{escape(printable(str(name)))}</th>'
        f'<td style="{CELL}">{escape(printable(str(value)))}</td></tr>'
        for name, value in rows
    )
    return f"<table>{''.join(lines)}</table>"


def rank_plot(result: Result) -> str:
    """Return all measured latencies by rank, fastest first, on a log scale, with the reference as a line, in SVG."""
    measured = by_latency(result.records)
    if not measured:
        return _svg([_text(WIDTH / 2, HEIGHT / 2, "No candidate was measured.", "middle")])
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
    return _svg(drawn)


def _levels(low: float, high: float) -> tuple[Callable[[float], float], list[str]]:
    """Return where latencies from `low` to `high` lie on a log scale, and round ones as drawn lines with labels."""
    room = math.log(high / low) or 0.01

    def y(latency_ms: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(latency_ms / low) / room, 1)

    drawn = []
    for level in log_ticks(low, high):
        drawn += [_line(y(level), LINE, "stroke-opacity='.4'"), _text(LEFT - 6, y(level) + 4, f"{level:.6g} ms", "end")]
    return y, drawn


def _point(x: float, y: float, colour: str, radius: float, title: str) -> str:
    return f"<circle cx='{x}' cy='{y}' r='{radius}' fill='{colour}'><title>{escape(title)}</title></circle>"


def _line(y: float, colour: str, style: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' stroke='{colour}' {style}>{inside}</line>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    font = "font-family='system-ui, sans-serif' font-size='11'"
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' fill='{TEXT}' {font}>{escape(text)}</text>"


def _svg(parts: list[str]) -> str:
    space = "xmlns='http://www.w3.org/2000/svg'"
    size = f"width='{WIDTH}' height='{HEIGHT}' style='max-width: 100%; height: auto'"
    head = f"<svg {space} {size} viewBox='0 0 {WIDTH} {HEIGHT}' role='img'"
    return f"{head} aria-label='latency against rank'>{''.join(parts)}</svg>"


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
