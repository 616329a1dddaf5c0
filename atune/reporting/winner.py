"""What the report's page has of the winner's kernel: facts, layouts, rooflines and source."""

from __future__ import annotations

import shlex
from html import escape

from atune.errors import AtuneError
from atune.journal.result import Result
from atune.model.candidate import printable
from atune.model.roofline import Roofline, rate_text
from atune.reporting.explanation import fact_rows
from atune.reporting.page import unbroken

SOURCE = 100_000
"""Most characters of the winner's source on the page."""


def kernel_section(result: Result) -> str:
    """Return the facts, layouts and rooflines of the winner; empty where none is known."""
    best, header = result.best, result.header
    if best is None or header is None:
        return ""
    facts = [*fact_rows(best, str(header.target), result.all_records)]
    if not facts and result.roofline is None:
        return ""
    rows = "".join(f'<tr><th scope="row">{escape(n)}</th><td>{escape(v)}</td></tr>' for n, v in facts)
    tables = [f"<table>{rows}</table>" if rows else "", _rooflines(result)]
    parts = "".join(f'<div class="scroll">{table}</div>' for table in tables if table)
    return f'<section id="kernel"><h2>The winner\'s kernel</h2><div class="pair">{parts}</div></section>'


def _rooflines(result: Result) -> str:
    """Return how near winner and reference come to the device's peaks, as a table with bars."""
    named = [("winner", result.roofline), ("reference", result.reference_roofline)]
    rows = [row for name, found in named if found is not None for row in _roofline_rows(name, found)]
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("roofline", "rate", "of the device's nominal peak"))
    return f"<table><tr>{heads}</tr>{''.join(rows)}</table>"


def _roofline_rows(name: str, found: Roofline) -> list[str]:
    rates = (("tensor cores", found.gflops_s, "FLOP/s", found.compute_share, "compute"),
             ("memory", found.gbytes_s, "B/s", found.memory_share, "memory"))  # fmt: skip
    rows = []
    for what, rate, unit, share, bound in rates:
        if rate is None:
            continue
        limit = ", which bounds it" if found.bound == bound else ", from a cache" if found.bound == "cache" else ""
        bar = "–"
        if share is not None:
            bar = f'<i style="--of: {min(1.0, share):.3f}"></i>\u00a0{100 * share:.0f}\u00a0%{limit}'
        shown = rate_text(rate, unit).replace(" ", "\u00a0")
        rows.append(f'<tr><th scope="row">{name}, {what}</th><td>{shown}</td><td class="bar">{bar}</td></tr>')
    return rows


def source_section(result: Result) -> str:
    """Return the winner's generated source, where it was kept, or the command that makes it again."""
    best, header = result.best, result.header
    if best is None or header is None:
        return ""
    try:
        source = result.kernel_source
    except AtuneError:
        source = ""
    if source:
        more = "" if len(source) <= SOURCE else f"\n… {len(source) - SOURCE:,} more characters"
        text = f'<pre class="output" tabindex="0">{escape(source[:SOURCE] + more)}</pre>'
        text = f"<details><summary>{source.count(chr(10)):,} lines, as compiled</summary>{text}</details>"
    elif header.origin and result.journal is not None:
        command = printable(f"atune explain {shlex.quote(result.journal)} {best.index} --source")
        text = f'<p class="soft">It was not kept. <code>{unbroken(command)}</code> makes it again.</p>'
    else:
        return ""
    return f'<section id="source"><h2>The winner\'s source</h2>{text}</section>'
