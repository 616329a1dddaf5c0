"""A journal's records for other tools: CSV, Parquet, and the T4 format of Kernel Tuner and its siblings."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atune.errors import UsageError
from atune.journal.events import BenchmarkFailed, BuildFailed, CandidateLowered, CandidateMeasured
from atune.journal.reader import JournalReader
from atune.journal.result import Record, TuneResult

FORMATS = ("csv", "parquet", "t4")

INVALIDITY = {
    "lower": "compile", "codegen": "compile", "compile": "compile", "crash": "compile", "timeout": "timeout",
    "mismatch": "correctness", "non_finite": "correctness", "unwritten": "correctness",
    "out_of_bounds": "correctness", "pruned": "constraints",
}  # fmt: skip
"""T4's name for each kind of failure; any other kind is ``runtime``."""


def export(journal: str | Path, to: str) -> bytes:
    """Return the journal's records in the format `to`: ``csv``, ``parquet`` (needs pyarrow) or ``t4``.

    Raises `UsageError` for another format, or where pyarrow is missing, and `JournalError`.
    """
    if to not in FORMATS:
        raise UsageError(f"--to {to}: give one of {', '.join(FORMATS)}")
    result = TuneResult.from_events(JournalReader(journal), Path(journal), replayed=True)
    if to == "csv":
        return _csv(result)
    return _parquet(result) if to == "parquet" else _t4(result, journal)


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return a flat row for each record: what became of it, then its configuration as ``config.NAME``."""
    found = []
    for record in records:
        timing, facts = record.timing, record.facts
        row: dict[str, Any] = {
            "index": record.index,
            "key": record.key,
            "status": record.status,
            "latency_ms": record.latency_ms,
            "spread": None if timing is None else timing.spread,
            "n_samples": None if timing is None else len(timing.samples_us),
            "power_w": None if timing is None or timing.energy is None else timing.energy.power_w,
            "call_j": None if timing is None or timing.energy is None else timing.energy.call_j,
            "device": record.device or None,
            "same_as": record.same_as,
            "instead": record.instead,
            "kind": record.kind or None,
            "message": record.message or None,
            "smem_bytes": None if facts is None else facts.smem_bytes,
            "threads": None if facts is None else facts.threads,
            "registers": None if record.machine is None else record.machine.registers,
            "stack_bytes": None if record.machine is None else record.machine.stack_bytes,
            "code_bytes": None if record.machine is None else record.machine.code_bytes,
            "slots": None if facts is None or facts.layouts is None else facts.layouts.slots,
            "redundant": None if facts is None or facts.layouts is None else facts.layouts.redundant,
        }
        found.append({**row, **{f"config.{name}": _flat(value) for name, value in record.config.items()}})
    return found


def _csv(result: TuneResult) -> bytes:
    table = rows(result.records)
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in table)
    return text.getvalue().encode()


def _parquet(result: TuneResult) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("--to parquet needs pyarrow, which is not installed: pip install 'atune[parquet]'") from error
    table = rows(result.records)
    names = list(dict.fromkeys(name for row in table for name in row))
    columns = {name: _column([row.get(name) for row in table]) for name in names}
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()


def _t4(result: TuneResult, journal: str | Path) -> bytes:
    """T4 auto-tuning results, schema 1.0.0, with what Kernel Tuner's `store_output_file` writes beside its fields."""
    times: dict[int, tuple[float, float, float]] = {}
    lowered: dict[int, float] = {}
    for event in JournalReader(journal):
        if isinstance(event, CandidateLowered):
            lowered[event.index] = event.seconds
        elif isinstance(event, CandidateMeasured | BuildFailed | BenchmarkFailed):
            seconds = event.seconds if isinstance(event, CandidateMeasured) else 0.0
            times[event.index] = (lowered.get(event.index, 0.0), seconds, event.time)
    entries = []
    for record in result.records:
        if record.status == "remaining":
            continue
        built_s, ran_s, at = times.get(record.index if record.same_as is None else record.same_as, (0.0, 0.0, 0.0))
        runtimes = [] if record.timing is None else [sample / 1e3 for sample in record.timing.samples_us]
        invalid = record.kind or ("pruned" if record.status == "pruned" else "")
        worked = record.latency_ms is not None
        entries.append(
            {
                "timestamp": datetime.fromtimestamp(at, UTC).isoformat(),
                "configuration": record.config,
                "objectives": ["time"],
                "times": {
                    "compilation_time": built_s * 1e3,  # the schema's name, and Kernel Tuner's
                    "compilation": built_s * 1e3,
                    "framework": 0,
                    "search_algorithm": 0,
                    "validation": 0,
                    "benchmark": ran_s * 1e3,
                    "runtimes": runtimes,
                },
                "invalidity": "correct" if worked else INVALIDITY.get(invalid, "runtime"),
                "correctness": 1 if worked else 0,
                "measurements": _measurements(record),
            }
        )
    document = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": entries}
    return (json.dumps(document, indent=1) + "\n").encode()


def _measurements(record: Record) -> list[dict[str, Any]]:
    worked = record.latency_ms is not None
    found: list[dict[str, Any]] = [{"name": "time", "value": record.latency_ms if worked else "", "unit": "ms"}]
    seen = None if record.timing is None else record.timing.conditions
    if seen is not None:
        readings = (
            ("sm_clock", seen.sm_mhz, "MHz"),
            ("memory_clock", seen.memory_mhz, "MHz"),
            ("temperature", seen.temperature_c, "°C"),
        )
        found += [{"name": name, "value": value, "unit": unit} for name, value, unit in readings if value is not None]
    return found


def _flat(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value)


def _safe(value: Any) -> Any:
    # A spreadsheet takes text that begins like this for a formula, and a journal may come from a stranger.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _column(values: list[Any]) -> list[Any]:
    """Make a column of one type: as text where it has several."""
    kinds = {float if isinstance(v, int) and not isinstance(v, bool) else type(v) for v in values if v is not None}
    return values if len(kinds) < 2 else [None if v is None else str(v) for v in values]
