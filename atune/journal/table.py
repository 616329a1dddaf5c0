"""The records of a run as a table of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atune.journal.printing import describe_config, printable

if TYPE_CHECKING:
    from atune.journal.result import Record, TuneResult

DECIMALS, MOST_DECIMALS = 4, 9
"""Decimals of a latency in milliseconds: those of most tables, and those that show a picosecond."""


def table(result: TuneResult) -> str:
    """Return what `TuneResult.table` returns."""
    final, marks = {entry.index for entry in result.final}, _marks(result)
    rows: list[tuple[str, ...]] = [("latency ms", "spread", "index", "config", "note")]
    decimals = _decimals(result)
    rows += [_row(record, final, marks.get(record.index, ""), decimals) for record in ranking(result)]
    return _aligned(rows)


def ranking(result: TuneResult) -> list[Record]:
    """Return the records: the winner, the others of the final, those timed once, and those without a latency.

    Finalists are in order of their final timing, those timed once in that of their first, failures in that of kinds.
    """
    final = {entry.index for entry in result.final}
    return sorted(result.records, key=lambda record: _place(record, result.best_index, final))


def _marks(result: TuneResult) -> dict[int, str]:
    """Return what candidates are beside measured: ``winner``, ``tie`` and ``default``."""
    default = result.default
    known = [(result.best_index, "winner"), *((index, "tie") for index in result.ties or ())]
    known.append((None if default is None else default.index, "default"))
    marks: dict[int, str] = {}
    for index, mark in known:
        if index is not None:
            marks[index] = ", ".join(filter(None, (marks.get(index), mark)))
    return marks


def _place(record: Record, winner: int | None, final: set[int]) -> tuple[bool, bool, bool, float, str, int]:
    latency = float("inf") if record.latency_ms is None else record.latency_ms
    credited = record.index if record.same_as is None else record.same_as
    kind = record.kind or record.status
    return record.latency_ms is None, record.index != winner, credited not in final, latency, kind, record.index


def _decimals(result: TuneResult) -> int:
    """Return how many decimals of a millisecond give the fastest candidate four digits; four at least."""
    known = [ms for record in result.records if (ms := record.latency_ms) is not None and 0 < ms < math.inf]
    return max(DECIMALS, min(MOST_DECIMALS, 3 - math.floor(math.log10(min(known))))) if known else DECIMALS


def _row(record: Record, final: set[int], mark: str, decimals: int) -> tuple[str, ...]:
    note: str = record.status
    if record.message:
        note += f": {record.kind + ': ' if record.kind else ''}{printable(record.message)}"
    if record.same_as is not None:
        note = f"same code as {record.same_as}"
    elif record.status == "measured":
        note = "final timing" if record.index in final else "first timing"
    note = ", ".join(filter(None, (mark, note)))
    if record.timing is None:
        return "-", "-", str(record.index), describe_config(record.config), note
    timing = record.timing
    figures = f"{timing.latency_ms:.{decimals}f}", f"{timing.spread:.1%}", str(record.index)
    return *figures, describe_config(record.config), note


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[:3], widths, strict=False)]
        texts = [cell.ljust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join(numbers + texts).rstrip())
    return "\n".join(lines)
