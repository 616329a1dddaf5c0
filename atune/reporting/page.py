"""The parts of the report's page that need no script: head, failures, search, environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from atune.journal.result import Record, TuneResult
from atune.journal.state import State
from atune.model.candidate import describe_config, printable
from atune.reporting.hosts import measured_on
from atune.reporting.importance import axis_importance
from atune.reporting.plot import improvements, over_time_plot
from atune.reporting.summary import (
    default_line,
    failure_groups,
    latency_line,
    no_winner_line,
    roofline_lines,
    ties_line,
    why_unchecked,
)

GROUPS = 200
"""Most reasons for failures that the page has."""


def page_title(result: TuneResult) -> str:
    """Return the workload's name with its problem."""
    header = result.header
    if header is None:
        return "atune report"
    problem = ", ".join(f"{name}={value}" for name, value in header.arguments.items())
    return printable(f"{header.workload} {problem}".strip())


def head_section(result: TuneResult) -> str:
    """Return the page's head: what was tuned and where, the figures as cards, and the winner."""
    header = result.header
    where = f"{header.target if header else ''} on {measured_on(result.devices)}"
    lines = [f"<h1>{breakable(page_title(result))}</h1>", f'<p class="soft">{breakable(where)}</p>']
    lines += ['<div class="cards">', *_cards(result), "</div>", '<h2 id="winner">Winner</h2>']
    if result.best is None:
        why = no_winner_line(result)
        return "\n".join([*lines, f"<p>{why[0].upper()}{why[1:]}.</p>"])
    lines += [f"<p>{breakable(line)}</p>" for line in _winner_lines(result, result.best)]
    return "\n".join([*lines, f'<pre id="config">{escape(printable(repr(result.best.config)))}</pre>'])


def _cards(result: TuneResult) -> list[str]:
    def ms(value: float | None) -> str:
        return "–" if value is None else f"{value:.4g} ms"

    counts = ("measured", "failed", "pruned", "duplicates", "remaining", "total")
    cards = [("winner", ms(result.latency_ms)), ("reference", ms(result.reference_ms))]
    cards += [*((name, str(getattr(result, name))) for name in counts), ("wall time", f"{result.wall_s:.1f} s")]
    return [f'<div class="card"><b>{value}</b><span class="soft">{name}</span></div>' for name, value in cards]


def _winner_lines(result: TuneResult, best: Record) -> list[str]:
    lines = [f"Candidate {best.index}: {describe_config(best.config)}"]
    lines += [
        f"{line[:1].upper()}{line[1:]}."
        for line in (latency_line(result), default_line(result), ties_line(result))
        if line
    ]
    lines += [f"Roofline: {line}." for line in roofline_lines(result)]
    if why := why_unchecked(result):
        lines.append(f"Its outputs were not checked: {why}.")
    if result.proven:
        lines.append("Proven plain: it is the code that tilelang itself makes.")
    elif result.finished:
        lines.append("Not proven plain: it was not compared with the code that tilelang itself makes.")
    else:
        lines.append("The run has not finished: this is the best configuration so far, by first timing.")
    return [*lines, "To use it, call the kernel function with the problem's arguments and this configuration:"]


def failures_section(result: TuneResult) -> str:
    """Return the failures, grouped by reason, the most frequent first; empty without any."""
    groups = failure_groups(result.records)
    if not groups:
        return ""
    text = "Grouped by reason, the most frequent first. Below it: the compiler output or device error of one of them."
    lines = ['<section id="failures">', f'<h2>Failures and pruned candidates</h2><p class="soft">{text}</p>']
    for group in groups[:GROUPS]:
        lines.append(f"<h3>{group.count:,} × {escape(printable(group.kind))}</h3>")
        lines.append(f"<p>{breakable(group.message)}</p>")
        if (where := group.where) is not None:
            lines.append(_written("\n".join(map(printable, where.lines()))))
        example = f"candidate {group.first.index}: {group.example}"
        lines.append(f'<p class="soft">For example {breakable(example)}</p>')
        if group.first.detail:
            lines.append(_written(group.first.detail))
    if len(groups) > GROUPS:
        lines.append(f"<p>{len(groups) - GROUPS:,} more reasons are in the journal.</p>")
    return "\n".join([*lines, "</section>"])


def _written(text: str) -> str:
    return f'<pre class="output" tabindex="0">{escape(text)}</pre>'


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


def _environment(result: TuneResult, state: State) -> list[tuple[str, str]]:
    header = result.header
    assert header is not None
    rows = [("journal", result.journal or "none"), ("workload", header.origin or header.workload)]
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


def search_section(result: TuneResult) -> str:
    """Return the page's section on the search. Empty if nothing was measured."""
    steps = improvements(result)
    if not steps:
        return ""
    tried, last = result.total - result.remaining, steps[-1]
    return "\n".join(
        [
            '<section id="search">',
            "<h2>Best so far over time</h2>",
            f'<p class="soft">By first timings. The last improvement came after {last.seconds:.1f} s, when '
            f"{last.tried:,} of the {tried:,} candidates were tried. The space has {result.total:,}.</p>",
            over_time_plot(result).svg,
            *_axes(result),
            "</section>",
        ]
    )


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
