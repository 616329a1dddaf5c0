"""All candidates as a table: their configuration, latency, what became of them, and the facts that differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from typing import Any

import msgspec

from atune.journal.result import Record, Result
from atune.model.candidate import BASELINE, printable
from atune.model.device import occupancy_of
from atune.model.roofline import in_thousands
from atune.reporting.export import marks_of, outcome, ranking

MOST = 700_000
"""Most characters of the page's table; the fastest come first."""
LONG = 60
"""Characters of a configuration's value from which on the page cuts it."""


class Column(msgspec.Struct, frozen=True):
    """A column: its title, and how a record's value is read and shown. A value that is not known is None."""

    title: str
    read: Callable[[Record], Any]
    show: Callable[[Any], str] = str


def columns(result: Result) -> list[Column]:
    """Return the table's columns: an axis, or a fact, that is the same in all candidates has none."""
    marks, final = marks_of(result), {entry.index for entry in result.final}
    ratio = times_winner(result)
    found = [
        Column("candidate", lambda r: r.index, lambda v: "baseline" if v == BASELINE else str(v)),
        Column("latency, ms", lambda r: r.latency_ms, lambda v: f"{v:.4g}"),
        Column("× winner", ratio, lambda v: f"{v:.2f}"),
        Column("spread, %", lambda r: getattr(r.timing, "spread", None), lambda v: f"{100 * v:.1f}"),
        Column("mark", lambda r: marks.get(r.index, "")),
    ]
    names = dict.fromkeys(name for record in result.all_records for name in record.config)
    axes = [Column(printable(name), lambda r, n=name: r.config.get(n), _value) for name in names]  # type: ignore[misc]
    differing = [axis for axis in axes if differs(axis, result)]
    found += differing or axes
    found += [fact for fact in facts(result) if differs(fact, result)]
    return [*found, Column("what became of it", lambda r: outcome(r, final))]


def facts(result: Result) -> list[Column]:
    """Return a column for each static fact, and for each figure of the roofline."""
    header = result.header
    arch = "" if header is None or header.target is None else header.target.arch

    def of(part: str, name: str) -> Callable[[Record], Any]:
        return lambda record: getattr(getattr(record, part), name, None)

    def layouts(name: str) -> Callable[[Record], Any]:
        return lambda record: getattr(getattr(record.facts, "layouts", None), name, None)

    return [
        Column("registers", of("machine", "registers")),
        Column("stack and spills, bytes", of("machine", "stack_bytes")),
        Column("shared memory, bytes", of("facts", "smem_bytes")),
        Column("threads a block", of("facts", "threads")),
        Column("occupancy, blocks", lambda record: _resident_blocks(record, arch)),
        Column("fragment slots", layouts("slots")),
        Column("redundant iterations", layouts("redundant")),
        Column("code, bytes", of("machine", "code_bytes")),
        Column("GFLOP/s", of("roofline", "gflops_s"), in_thousands),
        Column("GB/s", of("roofline", "gbytes_s"), in_thousands),
        Column("of the tensor cores, %", of("roofline", "compute_share"), lambda v: f"{100 * v:.1f}"),
        Column("of the memory, %", of("roofline", "memory_share"), lambda v: f"{100 * v:.1f}"),
    ]


def _resident_blocks(record: Record, arch: str) -> int | None:
    """Return how many blocks of a candidate a multiprocessor of `arch` holds at once; None where that is not known."""
    facts, machine = record.facts, record.machine
    if facts is None or machine is None or not facts.threads:
        return None
    smem_bytes = (facts.smem_bytes or 0) + machine.static_smem_bytes
    found = occupancy_of(arch, facts.threads, machine.registers, smem_bytes)
    return None if found is None else found.blocks


def differs(column: Column, result: Result) -> bool:
    """Tell whether two candidates differ in what a column shows; one that is not known differs from none."""
    seen = {value_text(value) for record in result.all_records if (value := column.read(record)) is not None}
    return len(seen) > 1


def times_winner(result: Result) -> Callable[[Record], float | None]:
    """Return a function of a record: its latency over the winner's, final timings and first timings each among them."""
    final = {entry.index: entry.timing.latency_ms for entry in result.final}
    first = {one.index: one.timing.latency_ms for one in result.measurements}

    def ratio(record: Record) -> float | None:
        credited, best = record.index if record.same_as is None else record.same_as, result.best_index
        timed = final if credited in final else first
        if best is None or credited not in timed:
            return None
        fastest = timed.get(best) or final.get(best)  # a baseline's first timing is not among those of the space
        return timed[credited] / fastest if fastest else None

    return ratio


def candidates_section(result: Result) -> str:
    """Return the page's table of all candidates; empty where none was proposed."""
    if not result.all_records:
        return ""
    rows, left, titles = list[str](), MOST, columns(result)
    for record in ranking(result):
        row = _row(record, titles, _attributes(record, result))
        left -= len(row)
        if left < 0 and rows:
            break
        rows.append(row)
    text = "The winner first, then the others of the final by their final timing, then the rest by their first timing."
    if len(rows) < len(result.all_records):
        text += f" Shown are {len(rows):,} of {len(result.all_records):,}; <code>atune export --to csv</code> has all."
    return "\n".join(
        [
            '<section id="all">',
            f'<h2>All candidates</h2><p class="soft">{text}</p>',
            '<div class="scroll tall" tabindex="0" role="region" aria-label="all candidates">',
            _table("".join(rows), titles),
            '</div><p class="hint">Scroll sideways for more columns.</p>',
            "</section>",
        ]
    )


def table(records: list[Record], titles: list[Column]) -> str:
    """Return records as an HTML table. A cell that is rounded has its whole value in ``data-v``."""
    return _table("".join(_row(record, titles) for record in records), titles)


def _table(rows: str, titles: list[Column]) -> str:
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in titles)
    return f'<table id="candidates"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _row(record: Record, titles: list[Column], attributes: str = "") -> str:
    cells = []
    for column in titles:
        value = column.read(record)
        shown = "–" if value is None else column.show(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        exact = f' data-v="{value:.9g}"' if number and shown != str(value) else ""
        if shown.endswith("…"):  # it distinguishes values that begin alike
            exact = f' title="{escape(value_text(value))}"'
        kind = ' class="n"' if number or value is None else ""
        cells.append(f"<td{kind}{exact}>{escape(shown)}</td>")
    kind = "" if record.latency_ms is not None else ' class="bad"'
    return f"<tr{kind}{attributes}>{''.join(cells)}</tr>"


def _attributes(record: Record, result: Result) -> str:
    """Return what the page's rows have more: the winner's mark, and the configuration as JSON, to copy."""
    config = escape(printable(json.dumps(record.config, default=str, separators=(",", ":"))))
    mark = ' class="winner"' if record.index == result.best_index else ""
    return f'{mark} data-config="{config}"'


def _value(value: Any) -> str:
    text = value_text(value)
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


def value_text(value: Any) -> str:
    """Return an axis value as text: a text, a truth and None as they are, anything else as JSON."""
    if isinstance(value, str | bool | None):
        return printable(str(value))
    return printable(json.dumps(value, default=str))
