"""Render the records of a run: all records as rows (for the page, the screen, CSV or JSON), or a record in full."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.reader import replay
from atune.journal.result import Record, Result
from atune.journal.set_folder import journals_in
from atune.model.artifact import what_failed
from atune.model.candidate import describe_config, printable
from atune.model.device import Occupancy, occupancy_of
from atune.model.layouts import Layouts, LoopFacts
from atune.model.measurement import Measurement
from atune.reporting.text import shown

FORMATS = ("csv", "json")


def export(journal: str | Path, to: str) -> bytes:
    """Return the journal's records in the format `to`: ``csv`` or ``json``. `journal` may also be the folder of a set.

    Raises `UsageError` for another format, and `JournalError` if the journal cannot be read.
    """
    if to not in FORMATS:
        raise UsageError(f"--to {to}: unknown format; give {' or '.join(FORMATS)}")
    path = Path(journal)
    results = map(replay, journals_in(path) or [path])
    table = [_columns("problem", r.header.arguments if path.is_dir() else {}) | row for r in results for row in rows(r)]
    return _csv(table) if to == "csv" else f"{json.dumps(table, indent=1)}\n".encode()


def rows(result: Result, records: Iterable[Record] | None = None) -> list[dict[str, Any]]:
    """Return a flat row for each record, with its outcome, facts and configuration (``config.NAME``).

    `records`: the records to export, in this order (default: all records, sorted by index). Unknown values are None.
    """
    marks, final = marks_of(result), {entry.index: entry.timing.latency_ms for entry in result.final}
    first = {measurement.index: measurement.timing.latency_ms for measurement in result.measurements}
    arch = result.header.target.arch

    def row(record: Record) -> dict[str, Any]:
        timing, facts = record.timing, record.facts
        layouts = None if facts is None else facts.layouts
        return {
            **{name: getattr(record, name) for name in ("index", "key", "status", "latency_ms")},
            "times_winner": _times_winner(result, record, final, first),
            "spread": None if timing is None else timing.spread,
            "n_samples": None if timing is None else len(timing.samples_us),
            "device": record.device or None,
            "mark": marks.get(record.index),
            "outcome": outcome(record, final),
            "same_as": record.same_as,
            "instead": record.instead,
            "kind": record.kind or None,
            "message": record.message or None,
            **_fields(facts, "smem_bytes", "threads"),
            **_fields(record.machine, "registers", "stack_bytes", "code_bytes"),
            "occupancy_blocks": getattr(occupancy(record, arch), "blocks", None),
            "fragment_registers": getattr(layouts, "registers", None),
            **_fields(layouts, "redundant"),
            **_columns("config", record.config),
        }

    return [row(record) for record in (result.all_records if records is None else records)]


def _columns(kind: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns ``kind.NAME`` for the values in `known`. A value that is not plain becomes JSON text."""
    return {f"{kind}.{n}": v if isinstance(v, str | int | float | None) else json.dumps(v) for n, v in known.items()}


def _fields(part: object, *names: str) -> dict[str, Any]:
    """Return the fields `names` of `part`, which is a part of a record. If `part` is None, the values are None."""
    return {name: getattr(part, name, None) for name in names}


def _times_winner(result: Result, record: Record, final: dict[int, float], first: dict[int, float]) -> float | None:
    """Return a record's latency divided by the winner's latency. Both are final timings, or both first timings."""
    credited, best = record.credited, result.best_index
    timed = final if credited in final else first
    if best is None or credited not in timed:
        return None
    fastest = timed.get(best) or final.get(best)  # a baseline that may not win is not in `first`
    return timed[credited] / fastest if fastest else None


def occupancy(record: Record, arch: str) -> Occupancy | None:
    """Return how many blocks of a candidate fit on a multiprocessor, and the limiting resource. None if unknown."""
    facts, machine = record.facts, record.machine
    if facts is None or machine is None or not facts.threads:
        return None
    return occupancy_of(arch, facts.threads, machine.registers, (facts.smem_bytes or 0) + machine.static_smem_bytes)


def _csv(table: list[dict[str, Any]]) -> bytes:
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([map(_safe, names), *(map(_safe, map(row.get, names)) for row in table)])
    return text.getvalue().encode()


def _safe(value: Any) -> Any:
    # A spreadsheet would take text that begins like this for a formula, and a journal may come from a stranger.
    safe = f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return shown(safe) if isinstance(safe, str) else safe


def table(result: Result, most: int | None = None) -> str:
    """Return the records as a table of text. A note in each row says, for example, winner, default, tie or failed.

    `ranking` gives the order of the rows. `most`: the largest number of rows.
    """
    records = ranking(result)[:most]
    lines = [("latency ms", "spread", "index", "config", "note")]
    for record, row in zip(records, rows(result, records), strict=True):
        latency = "-" if row["latency_ms"] is None else f"{row['latency_ms']:.6f}"
        spread = "-" if row["spread"] is None else f"{row['spread']:.1%}"
        note = ", ".join(filter(None, (row["mark"], row["outcome"])))
        lines.append((latency, spread, str(record.index), describe_config(record.config), note))
    return aligned(lines, 3)


def ranking(result: Result) -> list[Record]:
    """Sort the records: first the winner, then the other finalists by their final timing, then the other measured
    candidates by their first timing, and last the candidates without a latency, by kind of failure.
    """
    final, best = {entry.index for entry in result.final}, None if result.best is None else result.best.index
    return sorted(result.all_records, key=lambda record: _place(record, best, final))


def marks_of(result: Result) -> dict[int, str]:
    """Return each candidate's mark, by index: ``winner``, ``tie``, ``default`` or ``default, not in the space``."""
    default, best = result.default, None if result.best is None else result.best.index
    pairs = [(best, "winner"), *((index, "tie") for index in result.ties or ())]
    if default is not None:
        pairs.append((default.index, "default" if default is not result.baseline else "default, not in the space"))
    marks: dict[int, str] = {}
    for index, mark in pairs:
        if index is not None:
            marks[index] = ", ".join(filter(None, (marks.get(index), mark)))
    return marks


def _place(record: Record, winner: int | None, final: set[int]) -> tuple[bool, bool, bool, float, str, int]:
    latency = float("inf") if record.latency_ms is None else record.latency_ms
    kind = record.kind or record.status
    return record.latency_ms is None, record.index != winner, record.credited not in final, latency, kind, record.index


def outcome(record: Record, final: Container[int] = ()) -> str:
    """Return a record's outcome as a line of text. `final`: the indices of candidates with a valid final timing."""
    if record.same_as is not None:
        return f"same code as {record.same_as}"
    if record.status == "measured":
        return "final timing" if record.index in final else "first timing"
    message = printable(record.message)
    if record.instead is not None:
        return f"passed over for candidate {record.instead}: {message.removeprefix('likely: ')}"
    return ": ".join(filter(None, (what_failed(record.kind or record.status), message)))


def aligned(rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Return rows as text with aligned columns. The first `numbers` columns are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pairs = enumerate(zip(row, widths, strict=True))
        cells = [cell.rjust(width) if i < numbers else cell.ljust(width) for i, (cell, width) in pairs]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


# ---- a single record in full

DEFAULTS = "the kernel's defaults"
"""Text for an empty configuration."""
Facts = list[tuple[str, str]]
REPEATED = 2.0
"""atune warns about a loop if each thread does at least this many times its even share of the iterations."""


def facts_of(record: Record, arch: str, records: Sequence[Record] = ()) -> Facts:
    """Return a record's facts as pairs of a name and a text. `records`: all records of the run, so that the facts can
    name the candidates that were passed over for this record."""
    facts, machine, blocks = record.facts, record.machine, occupancy(record, arch)
    layouts = (facts and facts.layouts) or Layouts()
    known: Facts = []
    if record.instead is not None:
        known.append(("choice", outcome(record)))
    elif others := [str(other.index) for other in records if other.instead == record.index]:
        known.append(("choice", f"preferred to candidate{'s' if len(others) > 1 else ''} {', '.join(others)}"))
    if facts is not None:
        known += [("threads", str(facts.threads))] if facts.threads is not None else []
        known += [("grid", f"{_shape(facts.grid)} blocks")] if facts.grid else []
        known += [("source", f"{facts.source_bytes} bytes")] if facts.source_bytes is not None else []
    if machine is not None:
        known.append(("registers", f"{machine.registers} per thread"))
        known.append(("stack", f"{machine.stack_bytes} bytes per thread"))
        smem_bytes = machine.static_smem_bytes + ((facts and facts.smem_bytes) or 0)
        known += [("shared memory", f"{smem_bytes} bytes per block"), ("code", f"{machine.code_bytes} bytes")]
    if blocks is not None:
        limits = f"limited by {' and '.join(blocks.limits)}"
        known += [("occupancy", f"{blocks.blocks} block{'s' * (blocks.blocks != 1)} per multiprocessor, {limits}")]
    for fragment in layouts.fragments:
        held = f", each element in {fragment.replication} threads" if fragment.replication > 1 else ""
        text = f"{_shape(fragment.shape)} {fragment.dtype}: {fragment.slots} slots per thread{held}"
        known.append((f"fragment {printable(fragment.name)}", text))
    known += [(f"loop {n}", _loop(loop)) for n, loop in enumerate(layouts.loops)]
    for n, loop in enumerate(layouts.loops):
        stored = printable(", ".join(name for name in loop.stores if "(local" not in name))
        if stored and loop.repeated >= REPEATED:
            share = f"each thread does {loop.repeated:.3g} times an even share of the iterations"
            known.append(("warning", f"loop {n}: {share}, and stores {stored}"))
    return known


def _loop(loop: LoopFacts) -> str:
    parts = [f"{_shape(loop.extents)}: {loop.slots} iterations per thread"]
    parts += [f"each done by {loop.replication} threads"] if loop.replication > 1 else []
    parts += [f"{loop.redundant} of them redundant"] if loop.redundant else []
    parts += [f"{loop.width} wide"]
    parts += ["only some threads run the loop or store its results"] if loop.uneven else []
    source, slots = loop.by_source
    if slots > loop.slots:
        parts.append(f"not laid out as {printable(source)} ({slots} per thread)")
    elif slots == loop.slots and loop.redundant:
        parts.append(f"laid out as {printable(source)}, not evenly ({slots - loop.redundant} per thread)")
    parts += [f"stores {printable(', '.join(loop.stores))}"] if loop.stores else []
    return ", ".join(parts)


def _shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))


def record_data(record: Record, arch: str, result: Result | None = None) -> dict[str, Any]:
    """Return the data that ``--json`` prints for a record: its fields, all fields of `machine`, and the occupancy.

    If `result` is given, the data also has the path of the journal and the record's first `measurement`.
    """
    machine = record.machine and msgspec.structs.asdict(record.machine)
    more: dict[str, Any] = {"machine": machine, "occupancy": occupancy(record, arch), "target": arch or "c"}
    if result is not None:
        more |= {"journal": result.journal, "measurement": _first(result, record)}
    data: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(record) | more)
    return data


def _first(result: Result, record: Record) -> Measurement | None:
    """Return the first measurement of the code that the record's candidate compiles to."""
    return next((timed for timed in result.measurements if timed.index == record.credited), None)


def record_lines(record: Record, arch: str, result: Result | None = None) -> list[str]:
    """Return the lines for a record, which are safe to print. If `result` is given, the lines include the outcome."""
    config = ("config", describe_config(record.config) or DEFAULTS)
    if result is None:
        return _lines([config, ("target", arch or "c"), *facts_of(record, arch)])
    header, measured = result.header, _first(result, record)
    status = ", ".join(filter(None, (record.status, marks_of(result).get(record.index))))
    known = [("candidate", f"{record.index}: {status}"), config, ("key", printable(record.key))]
    if record.same_as is not None:
        known.append(("same as", f"candidate {record.same_as}: the same code, compiled and measured once"))
    if record.message:
        what = f"{what_failed(record.kind)}: " if record.kind else ""
        known.append(("reason", printable(what + record.message)))
    first = None if measured is None else measured.timing
    for name, timing in (("final", record.timing), ("first", first)):
        if timing is not None and (name == "first" or timing is not first):
            low, high = (f"{us / 1e3:.4g}" for us in (min(timing.samples_us), max(timing.samples_us)))
            several = f"{timing.n_samples} samples from {low} to {high} ms" if timing.n_samples > 1 else "1 sample"
            by = f"{several} by {printable(timing.method)}"
            median = f"{timing.latency_ms:.4g} ms, spread {timing.spread:.1%}"
            known.append((name, f"{median}, {by} on device {printable(record.device)}"))
    if measured is not None:
        error = "" if measured.max_error is None else f", largest difference {measured.max_error:.3g}"
        known.append(("outputs", f"correct{error}" if measured.checked else "not checked"))
    known += facts_of(record, arch, result.all_records)
    if record.facts is not None and header.origin:
        journal = shlex.quote(printable(str(result.journal)))
        known.append(("next", f"atune explain {journal} {record.index} --source"))
    lines = _lines(known)
    for name, text in (("printed", record.printed), ("written", record.detail)):
        if written := text.rstrip().splitlines():
            lines += [name, *(f"  {printable(line)}" for line in written)]
    return lines


def _lines(known: Facts) -> list[str]:
    return [f"{name:<10} {value}" for name, value in known]
