"""The search as HTML without scripts: a curve of the best so far, and the axes that mattered."""

from __future__ import annotations

import math
from html import escape

from atune.journal.improvements import Improvement
from atune.journal.result import TuneResult, describe_config, printable

WIDTH, HEIGHT = 1040, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 10, 14, 30
"""Margins of the curve, in pixels."""


def search_section(result: TuneResult) -> str:
    """Return the page's section on the search. Empty if nothing was measured."""
    steps = [step for step in result.best_over_time if step.latency_ms > 0 and math.isfinite(step.latency_ms)]
    if not steps:
        return ""
    return "\n".join(['<section id="search">', *_over_time(result, steps), *_axes(result), "</section>"])


def plain_summary(result: TuneResult) -> str:
    """Return the most important results, for browsers that run no scripts."""
    header = result.header
    title = "" if header is None else printable(header.workload)
    lines = ["No candidate worked."]
    if result.best is not None and result.latency_ms is not None:
        lines = [f"Winner: {describe_config(result.best.config)}", f"Latency: {result.latency_ms:.4g} ms"]
    counts = (
        f"{result.measured} measured, {result.failed} failed, {result.pruned} pruned, {result.duplicates} duplicates, "
        f"{result.remaining} remaining, of {result.total}"
    )
    told = "".join(f"<p>{escape(line)}</p>" for line in [*lines, counts, "The rest of this page needs JavaScript."])
    return f"<h1>{escape(title)}</h1>{told}"


def _over_time(result: TuneResult, steps: list[Improvement]) -> list[str]:
    tried = result.total - result.remaining
    end_s = max(result.wall_s, steps[-1].seconds, 1e-9)
    high, low = steps[0].latency_ms, steps[-1].latency_ms
    room = math.log(high / low) or 0.01

    def x(seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, seconds / end_s)), 1)

    def y(latency_ms: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(latency_ms / low) / room, 1)

    path = f"M{x(steps[0].seconds)},{y(high)}"
    path += "".join(f"H{x(step.seconds)}V{y(step.latency_ms)}" for step in steps[1:]) + f"H{x(end_s)}"
    drawn = [_text(LEFT - 6, y(ms) + 4, f"{ms:.4g} ms", "end") for ms in dict.fromkeys((high, low))]
    drawn += [_text(LEFT, HEIGHT - 6, "0 s", "start"), _text(WIDTH - RIGHT, HEIGHT - 6, f"{end_s:.1f} s", "end")]
    drawn.append(f'<path d="{path}" fill="none" stroke="var(--a)" stroke-width="2"/>')
    drawn += [_point(x(step.seconds), y(step.latency_ms), step) for step in steps]
    last = steps[-1]
    return [
        "<h2>Best so far over time</h2>",
        f'<p class="soft">By first timings. The last improvement came after {last.seconds:.1f} s, with candidate '
        f"{last.tried:,} of the {tried:,} that were tried. The space has {result.total:,}.</p>",
        f'<svg id="best" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="best latency so far over seconds">',
        *drawn,
        "</svg>",
    ]


def _axes(result: TuneResult) -> list[str]:
    found = result.axis_importance
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


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _point(x: float, y: float, step: Improvement) -> str:
    told = f"candidate {step.index}, {step.tried:,} tried, {step.seconds:.1f} s: {step.latency_ms:.4g} ms"
    return f'<circle cx="{x}" cy="{y}" r="3.5" fill="var(--b)"><title>{escape(told)}</title></circle>'
