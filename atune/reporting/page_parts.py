"""The parts of the report's page that need no script: its head, failures, warnings and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from atune.journal.printing import printable
from atune.journal.result import TuneResult
from atune.journal.state import State
from atune.reporting.hosts import by_host, measured_on
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
    told = "Grouped by reason, the most frequent first. Below it: what the compiler or device said of one of them."
    lines = ['<section id="failures">', f'<h2>Failures and pruned candidates</h2><p class="soft">{told}</p>']
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
    said = [f"<li>{breakable(text)}</li>" for text in dict.fromkeys([*result.warnings, *result.noise])]
    return "\n".join(["<h2>Warnings</h2>", "<ul>", *said, "</ul>"]) if said else ""


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
