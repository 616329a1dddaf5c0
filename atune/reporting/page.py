"""The parts of the report's page that need no script: head, failures, roofline, search, environment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from atune.journal.candidate_state import Improvement
from atune.journal.result import TuneResult
from atune.journal.state import State
from atune.model.candidate import printable
from atune.model.roofline import Roofline, in_thousands
from atune.reporting.hosts import by_host, measured_on
from atune.reporting.importance import axis_importance
from atune.reporting.plot import linear_ticks, log_ticks
from atune.reporting.summary import no_winner_line

GROUPS = 200
"""Most reasons for failures that the page has."""


def page_title(result: TuneResult) -> str:
    """Return the workload's name with its problem."""
    header = result.header
    if header is None:
        return "atune report"
    problem = ", ".join(f"{name}={value}" for name, value in header.arguments.items())
    return printable(f"{header.workload} {problem}".strip())


def head_section(result: TuneResult, cards: Sequence[tuple[str, str]], winner: Mapping[str, Any] | None) -> str:
    """Return the page's head: what was tuned and where, the figures as cards, and the winner."""
    header = result.header
    where = f"{header.target if header else ''} on {measured_on(result.devices)}"
    lines = [f"<h1>{breakable(page_title(result))}</h1>", f'<p class="soft">{breakable(where)}</p>']
    lines += ['<div class="cards">', *map(_card, cards), "</div>", '<h2 id="winner">Winner</h2>']
    if winner is None:
        why = no_winner_line(result)
        return "\n".join([*lines, f"<p>{why[0].upper()}{why[1:]}.</p>"])
    lines += [f"<p>{breakable(line)}</p>" for line in winner["lines"]]
    return "\n".join([*lines, f'<pre id="config">{escape(printable(winner["source"]))}</pre>'])


def failures_section(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the failures, grouped by reason, the most frequent first; empty without any.

    `groups`: `count`, `kind` and `message` of each, the compiler's or device's output as `detail`, `example`, and the
    lines of the place as `where`.
    """
    if not groups:
        return ""
    text = "Grouped by reason, the most frequent first. Below it: the compiler output or device error of one of them."
    lines = ['<section id="failures">', f'<h2>Failures and pruned candidates</h2><p class="soft">{text}</p>']
    for group in groups[:GROUPS]:
        lines.append(f"<h3>{group['count']:,} × {escape(printable(group['kind']))}</h3>")
        lines.append(f"<p>{breakable(group['message'])}</p>")
        if group.get("where"):
            lines.append(f'<pre class="words" tabindex="0">{escape(chr(10).join(group["where"]))}</pre>')
        if group.get("example"):
            lines.append(f'<p class="soft">For example {breakable(group["example"])}</p>')
        if group["detail"]:
            lines.append(f'<pre class="words" tabindex="0">{escape(group["detail"])}</pre>')
    if len(groups) > GROUPS:
        lines.append(f"<p>{len(groups) - GROUPS:,} more reasons are in the journal.</p>")
    return "\n".join([*lines, "</section>"])


def warnings_section(result: TuneResult) -> str:
    """Return the run's warnings; empty without any."""
    items = [f"<li>{breakable(text)}</li>" for text in dict.fromkeys([*result.warnings, *result.noise])]
    return "\n".join(["<h2>Warnings</h2>", "<ul>", *items, "</ul>"]) if items else ""


def environment_section(result: TuneResult, state: State) -> str:
    """Return where and with what the run was, as a table."""
    rows = [
        f'<tr><th scope="row">{escape(printable(name))}</th><td>{breakable(value)}</td></tr>'
        for name, value in _environment(result, state)
    ]
    return "\n".join(['<h2>Environment</h2><table id="environment">', *rows, "</table>"])


def breakable(text: str) -> str:
    """Return text as HTML on one line; paths and long lists may be broken after ``/``, ``,``, ``=`` and ``:``."""
    marked = printable(text)
    for sign in "/,=:":
        marked = marked.replace(sign, f"{sign}\0")
    return escape(marked).replace("\0", "<wbr>")


def _card(card: tuple[str, str]) -> str:
    name, value = card
    return (
        f'<div class="card"><b>{escape(printable(value))}</b><span class="soft">{escape(printable(name))}</span></div>'
    )


def _environment(result: TuneResult, state: State) -> list[tuple[str, str]]:
    header = result.header
    assert header is not None
    rows = [("journal", result.journal or "none"), ("workload", header.origin or header.workload)]
    rows += [(f"host {host}", devices) for host, devices in by_host(result.devices)]
    rows += [(f"device {d.id}", ", ".join(filter(None, (d.name, d.arch, d.uuid)))) for d in result.devices]
    rows += [("target", str(header.target)), ("strategy", header.strategy), ("fingerprint", header.fingerprint)]
    rows += [(name, version) for name, version in sorted(header.versions.items())]
    rows += [(name, _setting(value)) for name, value in header.settings.items()]
    if state.resumed is not None:
        rows.append(("parts", str(state.resumed.part + 1)))
        rows += [("accepted difference", text) for text in state.resumed.accepted]
    return rows


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={json.dumps(item, default=str)}" for name, item in value.items()) or "none"
    return json.dumps(value, default=str)


def efficiency_section(result: TuneResult) -> str:
    """Return the report's section on rooflines. Empty if the winner's is unknown."""
    if not result.roofline:
        return ""
    return "\n".join(['<section id="efficiency">', "<h2>Roofline</h2>", *_roofline_table(result), "</section>"])


def _roofline_table(result: TuneResult) -> list[str]:
    heads = ("of", "GFLOP/s", "GB/s", "of the tensor cores", "of the memory", "bound by")
    rows = [("winner", result.roofline), ("reference", result.reference_roofline)]
    known = result.roofline is not None and result.roofline.peaks
    note = "The peaks are from the data sheet." if known else "The device's peaks are not known."
    return [
        f'<p class="soft">{note}</p>',
        '<div class="scroll" tabindex="0" role="region" aria-label="roofline">',
        "<table><tr>" + "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr>",
        *(_roofline_row(name, roofline) for name, roofline in rows if roofline is not None),
        "</table></div>",
    ]


def _roofline_row(name: str, found: Roofline) -> str:
    rates = ["–" if rate is None else in_thousands(rate) for rate in (found.gflops_s, found.gbytes_s)]
    shares = [_share(found.compute_share), _share(found.memory_share)]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (name, *rates, *shares, found.bound or "–")) + "</tr>"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


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
    text = f"candidate {step.index}, {step.tried:,} tried, {step.seconds:.1f} s: {step.latency_ms:.4g} ms"
    return f'<circle cx="{x}%" cy="{y}" r="3.5" fill="var(--b)"><title>{escape(text)}</title></circle>'
