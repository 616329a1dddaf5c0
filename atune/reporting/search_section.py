"""The search as HTML without scripts: a curve of the best so far, and the axes that mattered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from atune.journal.improvements import Improvement
from atune.journal.printing import printable
from atune.journal.result import TuneResult
from atune.reporting.importance import axis_importance
from atune.reporting.ticks import linear_ticks, log_ticks

HEIGHT = 240
"""Of the curve, in pixels; it is as wide as the page."""
LEFT, RIGHT = 1.0, 99.0
"""Where the curve begins and ends, in hundredths of the width."""
TOP, BOTTOM = 22, 30
"""Margins of the curve, in pixels."""


def search_section(result: TuneResult) -> str:
    """Return the page's section on the search. Empty if nothing was measured."""
    steps = [step for step in result.best_over_time if step.latency_ms > 0 and math.isfinite(step.latency_ms)]
    if not steps:
        return ""
    return "\n".join(['<section id="search">', *_over_time(result, steps), *_axes(result), "</section>"])


def _over_time(result: TuneResult, steps: list[Improvement]) -> list[str]:
    tried = result.total - result.remaining
    last = steps[-1]
    return [
        "<h2>Best so far over time</h2>",
        f'<p class="soft">By first timings. The last improvement came after {last.seconds:.1f} s, when '
        f"{last.tried:,} of the {tried:,} candidates were tried. The space has {result.total:,}.</p>",
        curve(steps, result.wall_s),
    ]


def curve(steps: Sequence[Improvement], wall_s: float) -> str:
    """Return the best so far over seconds as an SVG that is as wide as what holds it, with latencies on a log scale."""
    end_s = max(wall_s, steps[-1].seconds, 1e-9)
    high, low = steps[0].latency_ms, steps[-1].latency_ms
    room = math.log(high / low) or 0.01

    def x(seconds: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, seconds / end_s)), 2)

    def y(latency_ms: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(latency_ms / low) / room, 1)

    path = f"M{x(steps[0].seconds)},{y(high)}"
    path += "".join(f"H{x(step.seconds)}V{y(step.latency_ms)}" for step in steps[1:]) + f"H{x(end_s)}"
    drawn = [_level(y(ms), f"{ms:.6g} ms") for ms in log_ticks(low, high)]
    drawn += [_second(x(seconds), seconds, end_s) for seconds in linear_ticks(0.0, end_s)]
    drawn.append(
        f'<svg viewBox="0 0 100 {HEIGHT}" preserveAspectRatio="none"><path d="{path}" fill="none" stroke="var(--a)" '
        'stroke-width="2" vector-effect="non-scaling-stroke"/></svg>'
    )
    drawn += [_point(x(step.seconds), y(step.latency_ms), step) for step in steps]
    label = "best latency so far over seconds"
    return f'<svg id="best" class="curve" height="{HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _axes(result: TuneResult) -> list[str]:
    found = axis_importance(result)
    lines = ["<h2>Axes that mattered</h2>"]
    if found is None:
        return [*lines, '<p class="soft">Too few candidates were measured to tell.</p>']
    lines.append(
        '<p class="soft">The share of the variance of the log latency that each axis explains alone, from '
        f"{found.candidates:,} candidates.</p>"
    )
    lines.append('<table id="mattered"><tr><th>axis</th><th>share</th></tr>')
    shares = [*found.shares.items(), ("combinations and noise", found.unexplained)]
    lines += [f"<tr><td>{escape(printable(name))}</td><td>{100 * share:.1f} %</td></tr>" for name, share in shares]
    return [*lines, "</table>"]


def _level(y: float, text: str) -> str:
    line = f'<line x1="0%" x2="100%" y1="{y}" y2="{y}" stroke="var(--line)"/>'
    return f'{line}<text x="0%" y="{round(y - 3, 1)}">{escape(text)}</text>'


def _second(x: float, seconds: float, end_s: float) -> str:
    anchor = "start" if x < 5 else "end" if seconds > 0.95 * end_s else "middle"
    return f'<text x="{x}%" y="{HEIGHT - 6}" text-anchor="{anchor}">{seconds:g} s</text>'


def _point(x: float, y: float, step: Improvement) -> str:
    told = f"candidate {step.index}, {step.tried:,} tried, {step.seconds:.1f} s: {step.latency_ms:.4g} ms"
    return f'<circle cx="{x}%" cy="{y}" r="3.5" fill="var(--b)"><title>{escape(told)}</title></circle>'
