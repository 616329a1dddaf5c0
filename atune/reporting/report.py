"""A journal as one HTML page: data that a script draws. It needs no network, no other file and none of your code."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atune.errors import AtuneError
from atune.journal.events import Event, RunStarted
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.journal.state import State
from atune.model.artifact import what_failed
from atune.model.candidate import BASELINE, printable
from atune.model.device import DeviceInfo
from atune.model.options import options_of
from atune.model.roofline import Roofline, rate_text
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.reporting.explanation import facts_of
from atune.reporting.export import ranking, rows, table
from atune.reporting.headline import headline
from atune.reporting.importance import Importance, axis_importance
from atune.reporting.page import page
from atune.reporting.plots import Timeline, host_of, plot_data, value_text
from atune.reporting.progress import duration, shortened
from atune.reporting.summary import PRUNED, FailureGroup, failure_groups, summary_text

GROUPS = 50
"""Most reasons for failures that the page has."""
DETAIL, LINE = 4000, 300
"""Most characters of a compiler's or device's output, and of the line for a candidate's failure."""
SOURCE = 100_000
"""Most characters of the winner's source on the page."""
MOST, PLAIN = 3000, 300
"""Most candidates of the page's table, and of the one for readers without a script; the fastest come first."""
COLUMNS: dict[str, tuple[str, int | None]] = {
    "index": ("candidate", None), "latency_ms": ("latency, ms", None), "times_winner": ("× winner", 2),
    "spread": ("spread, %", 1), "mark": ("mark", None), "config": ("", None), "registers": ("registers", None),
    "stack_bytes": ("stack and spills, bytes", None), "smem_bytes": ("shared memory, bytes", None),
    "threads": ("threads a block", None), "occupancy_blocks": ("occupancy, blocks", None),
    "fragment_registers": ("registers of fragments", None), "redundant": ("redundant iterations", None),
    "code_bytes": ("code, bytes", None), "outcome": ("what became of it", None),
}  # fmt: skip
"""Columns of the table by the field of a row: title, and decimals; ``config`` stands for the axes."""
ALWAYS = ("index", "latency_ms", "times_winner", "spread", "mark", "outcome")
"""Columns that are there even if all candidates have the same in them."""


def report(journal: str | Path) -> str:
    """Return the page for `journal`. Raises `JournalError` if it cannot be read."""
    return page_of(JournalReader(journal), Path(journal))


def page_of(events: Iterable[Event], journal: Path | None = None) -> str:
    """Return the page for a run's events, in order; `journal` is where they lie, for the reader of the page."""
    state, timeline = State(), Timeline()
    for event in events:
        state.apply(event)
        timeline.add(event)
    result = Result.of(state, journal, replayed=True)
    mattered = axis_importance(result)
    data, setting = plot_data(result, mattered, timeline), [*environment(result), *_resumed(state)]
    parts = [
        card(result),
        {"kind": "list", "title": "Warnings", "items": list(dict.fromkeys(result.warnings + result.noise))},
        *_plots(result, mattered, data),
        _failures(result),
        _candidates(result),
        *_kernel(result),
        {"kind": "facts", "id": "environment", "title": "Environment", "rows": setting},
    ]
    plain = f"{summary_text(result)}\n\n{table(result, PLAIN)}"
    return page(page_title(result), parts, plain, data)


def page_title(result: Result) -> str:
    """Return the workload's name with its problem."""
    header = result.header
    if header is None:
        return "atune report"
    problem = ", ".join(f"{name}={value}" for name, value in header.arguments.items())
    return printable(f"{header.workload} {problem}".strip())


def card(result: Result) -> dict[str, Any]:
    """Return the part for the winner, or why there is none, and for what became of the candidates."""
    head, best = headline(result), result.best
    names = {"measured": "measured", "failed": "failed", "pruned": "pruned", "duplicates": "duplicate",
             "remaining": "untried"}  # fmt: skip
    notes = head.notes if result.finished or best is None else [
        *head.notes, "The run has not finished: this is the best configuration so far, by first timing.",
    ]  # fmt: skip
    return {
        "kind": "card",
        "figures": head.figures,
        "config": None if best is None else best.config,
        "shown": head.winner,
        "notes": notes,
        "origin": _origin(result),
        "command": "" if result.header is None else command_of(result.header),
        "total": f"{result.total:,} {'candidate' if result.total == 1 else 'candidates'}",
        "counts": [[f"{n:,} {text}", text == "failed"] for name, text in names.items() if (n := getattr(result, name))],
    }


def measured_on(devices: Sequence[DeviceInfo]) -> str:
    """Return the devices' models for a heading: each with its count, and on how many hosts where there are several."""
    hosts = {host_of(device.id) for device in devices}
    if len(hosts) < 2:
        return ", ".join(device.name for device in devices) or "no device"
    counts = Counter(device.name for device in devices)
    return f"{', '.join(f'{count} × {name}' for name, count in counts.items())}, on {len(hosts)} hosts"


def _origin(result: Result) -> list[str]:
    """Return where and when the run was, and how long it took."""
    header = result.header
    if header is None:
        return ["no run"]
    target = {"c": "CPU, compiled as C"}.get(header.target.kind, str(header.target))
    when = [f"{datetime.fromtimestamp(header.time, UTC):%Y-%m-%d %H:%M} UTC"] if math.isfinite(header.time) else []
    took = f"{duration(result.wall_s)}{'' if result.finished else ' so far'}"
    return [f"{measured_on(result.devices)}, {target}", *when, took]


def command_of(header: RunStarted) -> str:
    """Return the command that starts such a run, with all settings that are not the default.

    Empty where the workload came from no file.
    """
    if not header.origin:
        return ""
    words = ["atune", "tune", header.origin, "--strategy", header.strategy]
    budget = _group(header, "budget")
    for name, unit in (("candidates", ""), ("percent", "%"), ("seconds", "s")):
        if isinstance(limit := budget.get(name), int | float):
            words += ["--budget", f"{limit:g}{unit}"]
    if seed := header.settings.get("seed"):
        words += ["--seed", str(seed)]
    for group, kind in (("compile", CompileSettings), ("benchmark", BenchmarkSettings)):
        given = _group(header, group)
        for name, field in options_of(kind).items():
            value, flag = given.get(name, field.default), field.option.flag
            if flag and value != field.default:
                off = value is False and not flag.startswith("--skip-")
                words.append(f"--no-{flag.removeprefix('--')}" if off else flag)
                words += [] if isinstance(value, bool) else [str(value)]
    return printable(shlex.join(words))


def _group(header: RunStarted, name: str) -> Mapping[str, Any]:
    found = header.settings.get(name)
    return found if isinstance(found, Mapping) else {}


def _plots(result: Result, mattered: Importance | None, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts that the script draws from `data`, and the axes that mattered."""
    steps, axes, n = data["steps"], data["axes"], len(data["candidates"])
    parts, pair = [], list[dict[str, Any]]()
    if steps:
        text = f"By first timings. The last improvement came after {steps[-1][0]:.1f} s, when {steps[-1][2]:,} of the "
        text += f"{result.total - result.remaining:,} candidates were tried."
        parts.append(_plot("search", "Best latency so far", text))
    if len(axes) > 1:
        x, y = axes[0]["name"], axes[1]["name"]
        text = f"The best latency in ms for each pair of values of {x} and {y}, whatever the other axes are. "
        pair.append(_plot("heat", f"{x} and {y}", f"{text}The stronger the colour, the faster."))
    if result.measured:
        pair.append(_mattered(result, mattered))
    parts.append({"kind": "pair", "items": pair})
    if n > 1:
        text = "Each measured candidate once, the fastest first. Orange ones were timed again in the final."
        if data["left_out"]:
            text += f" The fastest {n:,} of {n + data['left_out']:,} are shown."
        parts.append(_plot("rank", "Latency by rank", text))
    if n > 1 and len(axes) > 2:
        text = "A line for each candidate; the fastest tenth is strong, the winner orange. Drag along an axis to keep "
        text += "the lines that pass there, on several axes for those that pass all; click an axis to end it."
        parts.append(_plot("parallel", "All axes at once", text))
    if data["timeline"]["rows"]:
        parts.append(_plot("timeline", "Timeline", data["timeline"]["text"]))
    return parts


def _plot(name: str, title: str, text: str) -> dict[str, Any]:
    return {"kind": "plot", "id": name, "title": title, "text": text}


def _mattered(result: Result, found: Importance | None) -> dict[str, Any]:
    """Return the axes that mattered, with bars."""
    part: dict[str, Any] = {"kind": "facts", "id": "mattered", "title": "Axes that mattered"}
    if found is None:
        return {**part, "text": "Too few candidates were measured to tell."}
    text = f"How much of the differences in latency each axis explains by itself, from {found.candidates:,} candidates."
    config = {} if result.best is None else result.best.config
    most = max([*found.shares.values(), found.unexplained]) or 1.0
    lines = [
        [name, _bar(share / most, f"{100 * share:.1f}"), value_text(config[name]) if name in config else ""]
        for name, share in found.shares.items()
    ]
    rest = ["combinations and noise", {**_bar(found.unexplained / most, f"{100 * found.unexplained:.1f}"), "rest": 1}]
    return {**part, "text": text, "heads": ["axis", "share", "winner's value"], "rows": [*lines, [*rest, ""]]}


def _bar(of: float, percent: str) -> dict[str, Any]:
    return {"of": round(min(1.0, of), 3), "text": f"\u00a0{percent}\u00a0%"}


def _failures(result: Result) -> dict[str, Any]:
    """Return the failures, grouped by reason, the most frequent first."""
    groups = failure_groups(result.records)
    text = "By reason, the most frequent first, each with an example and what its compiler or device wrote."
    if len(groups) > GROUPS:
        text += f" {len(groups) - GROUPS:,} more reasons are in the journal."
    return {"kind": "failures", "id": "failures", "title": "Failures and pruned candidates", "text": text,
            "items": [_failure(group) for group in groups[:GROUPS]]}  # fmt: skip


def _failure(group: FailureGroup) -> dict[str, Any]:
    where = group.where
    return {
        "bad": group.kind != PRUNED,
        "title": f"{group.count:,} {what_failed(group.kind)}",
        "text": f"{'For example: ' if group.varied else ''}{group.message}",
        "where": None if where is None else where.lines(),
        "example": f"For example candidate {group.first.index}: {group.example}",
        "written": group.first.detail[-DETAIL:].splitlines(),
    }


def _candidates(result: Result) -> dict[str, Any]:
    """Return the table of the candidates; an axis, or a fact, that is the same in all of them has no column."""
    records = ranking(result)
    found = rows(result, records)
    axes = list(dict.fromkeys(f"config.{name}" for record in records for name in record.config))
    names = [name for field in COLUMNS for name in (axes if field == "config" else [field])]
    differing = {name for name in names if len({str(v) for row in found if (v := row.get(name)) is not None}) > 1}
    differing |= set() if differing & set(axes) else set(axes)
    shown = [name for name in names if name in ALWAYS or name in differing]
    heads = {**COLUMNS, **{axis: (axis.removeprefix("config."), None) for axis in axes}}
    text = "The winner first, then the others of the final by their final timing, then the rest by their first timing."
    if len(found) > MOST:
        text += f" Shown are {MOST:,} of {len(found):,}; atune export --to csv has all."
    return {
        "kind": "table",
        "id": "all",
        "name": "candidates",
        "title": "All candidates",
        "text": text,
        "example": _example(result, differing),
        "columns": [{"title": heads[name][0], "decimals": heads[name][1]} for name in shown],
        "rows": [
            {
                "cells": [_cell(row.get(name), heads[name][0]) for name in shown],
                "class": "winner" if record.index == result.best_index else "" if record.timing else "bad",
                "config": record.config,
            }
            for record, row in zip(records[:MOST], found, strict=False)
        ],
    }


def _example(result: Result, differing: set[str]) -> str:
    """Return a word that a row may have, such as ``block_M=128``."""
    config = {} if result.best is None else result.best.config
    return next((f"{name}={value_text(value)}" for name, value in config.items() if f"config.{name}" in differing), "")


def _cell(value: Any, title: str) -> Any:
    if title == "candidate" and value == BASELINE:
        return "baseline"
    if title == "mark":
        return value or ""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return 100 * value if value is not None and title.endswith(", %") else value
    return shortened(value_text(value), LINE)


def _kernel(result: Result) -> list[dict[str, Any]]:
    """Return the parts for the winner's facts, its roofline, and its source or the command that makes it again."""
    best, header = result.best, result.header
    if best is None or header is None:
        return []
    facts = {"kind": "facts", "rows": facts_of(best, header.target.arch, result.all_records)}
    lines = [] if result.roofline is None else _roofline_rows(result.roofline)
    heads = ["roofline", "rate", "of the device's nominal peak"]
    tables = [part for part in (facts, {"kind": "facts", "heads": heads, "rows": lines}) if part["rows"]]
    kernel = {"kind": "pair", "id": "kernel", "title": "The winner's kernel", "items": tables}
    source = {"kind": "source", "id": "source", "title": "The winner's source"}
    try:
        text = result.kernel_source
    except AtuneError:
        if not header.origin or result.journal is None:
            return [kernel]
        command = f"atune explain {shlex.quote(result.journal)} {best.index} --source"
        return [kernel, {**source, "command": command}]
    more = [] if len(text) <= SOURCE else [f"… {len(text) - SOURCE:,} more characters"]
    return [kernel, {**source, "summary": f"{text.count(chr(10)):,} lines, as compiled",
                     "written": [*text[:SOURCE].splitlines(), *more]}]  # fmt: skip


def _roofline_rows(found: Roofline) -> list[list[Any]]:
    """Return how near the winner comes to the device's peaks, with bars."""
    rates = (("tensor cores", found.gflops_s, "FLOP/s", found.compute_share, "compute"),
             ("memory", found.gbytes_s, "B/s", found.memory_share, "memory"))  # fmt: skip
    lines = list[list[Any]]()
    for what, rate, unit, share, bound in rates:
        if rate is None:
            continue
        limit = ", which bounds it" if found.bound == bound else ", from a cache" if found.bound == "cache" else ""
        bar: Any = "–"
        if share is not None:
            bar = _bar(share, f"{100 * share:.0f}")
            bar["text"] += limit
        lines.append([what, rate_text(rate, unit).replace(" ", "\u00a0"), bar])
    return lines


def environment(result: Result) -> list[tuple[str, str]]:
    """Return where and with what a run was: names and values."""
    header = result.header
    assert header is not None
    found = [("journal", result.journal or "none"), ("workload", header.origin or header.workload)]
    found += [(f"device {d.id}", ", ".join(filter(None, (d.name, d.arch, d.uuid)))) for d in result.devices]
    found += [("target", str(header.target)), ("strategy", header.strategy), ("fingerprint", header.fingerprint)]
    found += [(name, version) for name, version in sorted(header.versions.items())]
    return found + [(name, text) for name, value in header.settings.items() if (text := _setting(value))]


def _resumed(state: State) -> list[tuple[str, str]]:
    """Return how often a run was resumed, and with which accepted differences, as `environment` does."""
    if state.resumed is None:
        return []
    return [("parts", str(state.resumed.part + 1)), *(("accepted difference", text) for text in state.resumed.accepted)]


def _setting(value: Any) -> str:
    """Return a setting as text, or a group of those that have a value; empty for one that has none."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, item in value.items() if (text := _setting(item)))
    return "" if value is None else json.dumps(value, default=str)
