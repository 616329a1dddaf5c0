"""Spaces, workloads, records and results as a notebook shows them: small pieces of HTML without a script."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from atune.journal.result import Record, Result
from atune.model.candidate import describe_config, printable
from atune.model.space import Space
from atune.reporting.candidates import columns, table
from atune.reporting.export import ranking
from atune.reporting.plot import rank_plot
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
from atune.workload.workload import Workload

ROWS = 10
"""Candidates in a result's table."""
VALUES = 24
"""Values of an axis that are shown."""
CARD = "border: 1px solid #9aa3b5; border-radius: 6px; padding: .5em 1em; margin: .3em 0; display: inline-block"
BREAKING = "overflow-wrap: break-word"
"""Long paths and names of types do not make the cell's output wider."""
CELL = "text-align: left; padding: .1em .8em .1em 0"


def enable() -> None:
    """Register with IPython how results, records, spaces and workloads are shown. Does nothing elsewhere.

    `import atune` calls this where IPython is running. Call it yourself where IPython starts later.
    """
    ipython = sys.modules.get("IPython")
    formatter = getattr(ipython.get_ipython(), "display_formatter", None) if ipython is not None else None
    if formatter is not None:
        html = formatter.formatters["text/html"]
        html.for_type(Result, result_html)
        html.for_type(Record, record_html)
        html.for_type(Space, space_html)
        html.for_type(Workload, workload_html)


def result_html(result: Result) -> str:
    """Return a result: the winner, the first candidates of the ranking, the commonest failures, and a plot."""
    parts = [_card(result), f"<p>Candidates {counts_line(result)}</p>"]
    if result.best is not None:
        parts += [_ranked(result), rank_plot(result).svg]
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


def space_html(space: Space) -> str:
    """Return a space: its axes with their values. None of the user's functions is called."""
    axes = space.axes
    if not axes:
        listed = "configurations that a function gives"
        if space.listed is not None:
            listed = f"{len(space.listed):,} configurations"
        return f"<b>Space</b> of {listed}{_constraints(space.where)}"
    known = [len(values) for values in axes.values() if not callable(values)]
    size = f"{math.prod(known):,} points" if len(known) == len(axes) else "a size that the problem's arguments decide"
    return f"<b>Space</b> of {size}{_constraints(space.where)}" + _table((n, _values(v)) for n, v in axes.items())


def workload_html(workload: Workload) -> str:
    """Return a workload: its problem, what it is checked against, and its space."""
    checked = _name(workload.reference or workload.check, "nothing: outputs are not checked")
    rows = [
        ("problem", describe_config(workload.arguments) or "no arguments"),
        ("inputs", _name(workload.inputs, "drawn by the parameters' shapes")),
        ("checked against", checked),
        ("default", "the kernel's own" if workload.default is None else describe_config(workload.default)),
    ]
    return f"<b>Workload {escape(printable(workload.name))}</b>{_table(rows)}{space_html(workload.space)}"


def _card(result: Result) -> str:
    name = printable(result.header.workload) if result.header else "no run"
    if result.best is None:
        return f'<div style="{CARD}"><b>{escape(name)}</b>: {escape(no_winner_line(result))}</div>'
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


def _values(values: Sequence[Any] | Callable[..., Any]) -> str:
    if callable(values):
        return f"by {_name(values, '')}"
    shown = ", ".join(repr(value) for value in values[:VALUES])
    return shown + (f", … ({len(values):,} values)" if len(values) > VALUES else "")


def _constraints(where: Sequence[Any]) -> str:
    if not where:
        return ""
    return f", before {len(where)} constraint{'s' if len(where) > 1 else ''}"


def _name(value: Any, otherwise: str) -> str:
    if value is None:
        return otherwise
    if callable(value):
        return printable(str(getattr(value, "__name__", type(value).__name__)))
    return value if isinstance(value, str) else f"{len(value)} tensors"
