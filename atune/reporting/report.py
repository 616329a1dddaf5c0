"""A journal as one HTML page: data that a script draws. It needs no network, no other file and none of your code."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from atune.errors import AtuneError
from atune.journal.events import Event
from atune.journal.reader import JournalReader
from atune.journal.result import Record, Result
from atune.journal.state import Seconds, State
from atune.model.artifact import what_failed
from atune.model.candidate import BASELINE, describe_config, printable, shortened
from atune.model.device import DeviceInfo
from atune.reporting.explanation import facts_of
from atune.reporting.export import ranking, rows, table
from atune.reporting.importance import Importance, axis_importance
from atune.reporting.progress import duration
from atune.reporting.summary import MOST_GROUPS, PRUNED, FailureGroup, failure_groups, headline, summary_text

DETAIL, LINE = 4000, 300
"""Most characters of a compiler's or device's output, and of the line for a candidate's failure."""
SOURCE = 100_000
"""Most characters of the winner's source on the page."""
MOST_BYTES, DEPTH = 2_000_000, 7
"""A page is smaller: one of a stranger's journal is cut until it is. Deeper data is text on such a page."""
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
    state = State.of(events)
    result = Result.of(state, journal, replayed=True)
    mattered = axis_importance(result)
    data, setting = plot_data(result, mattered, state.seconds), environment(result)
    if state.resumed is not None:
        setting.append(("parts", str(state.resumed.part + 1)))
        setting += [("accepted difference", text) for text in state.resumed.accepted]
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
    title = f"{printable(result.header.workload)} {describe_config(result.header.arguments)}".strip()
    return page(title, parts, plain, data)


def card(result: Result) -> dict[str, Any]:
    """Return the part for the winner, or why there is none, and for what became of the candidates."""
    head, best = headline(result), result.best
    names = {"measured": "measured", "failed": "failed", "pruned": "pruned", "duplicates": "duplicate",
             "remaining": "untried"}  # fmt: skip
    notes = head.notes if result.finished or best is None else [
        *head.notes, "The run has not finished: this is the best configuration so far, by first timing.",
    ]  # fmt: skip
    target = {"c": "CPU, compiled as C"}.get(result.header.target.kind, str(result.header.target))
    when = f"{datetime.fromtimestamp(result.header.time, UTC):%Y-%m-%d %H:%M} UTC"
    took = f"{duration(result.wall_s)}{'' if result.finished else ' so far'}"
    return {
        "kind": "card",
        "figures": head.figures,
        "config": None if best is None else best.config,
        "shown": head.winner,
        "notes": notes,
        "origin": [f"{measured_on(result.devices)}, {target}", when, took],
        "total": f"{result.total:,} {'candidate' if result.total == 1 else 'candidates'}",
        "counts": [[f"{n:,} {text}", text == "failed"] for name, text in names.items() if (n := getattr(result, name))],
    }


def measured_on(devices: Sequence[DeviceInfo]) -> str:
    """Return the devices' models for a heading, each with its count."""
    counts = Counter(device.name for device in devices)
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items()) or "no device"


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
    if len(groups) > MOST_GROUPS:
        text += f" {len(groups) - MOST_GROUPS:,} more reasons are in the journal."
    return {"kind": "failures", "id": "failures", "title": "Failures and pruned candidates", "text": text,
            "items": [_failure(group) for group in groups[:MOST_GROUPS]]}  # fmt: skip


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
        "columns": [{"title": heads[name][0], "decimals": heads[name][1]} for name in shown],
        "rows": [
            {
                "cells": [_cell(row.get(name), heads[name][0]) for name in shown],
                "class": "winner" if record is result.best else "" if record.timing else "bad",
                "config": record.config,
            }
            for record, row in zip(records[:MOST], found, strict=False)
        ],
    }


def _cell(value: Any, title: str) -> Any:
    if title == "candidate" and value == BASELINE:
        return "baseline"
    if title == "mark":
        return value or ""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return 100 * value if value is not None and title.endswith(", %") else value
    return shortened(value_text(value), LINE)


def _kernel(result: Result) -> list[dict[str, Any]]:
    """Return the parts for the winner's facts, and its source or the command that makes it again."""
    best, header = result.best, result.header
    if best is None:
        return []
    facts = facts_of(best, header.target.arch, result.all_records)
    facts += [] if result.roofline is None else [("roofline", result.roofline.describe())]
    kernel = {"kind": "facts", "id": "kernel", "title": "The winner's kernel", "rows": facts}
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


def environment(result: Result) -> list[tuple[str, str]]:
    """Return where and with what a run was: names and values."""
    header = result.header
    found = [("journal", result.journal or "none"), ("workload", header.origin or header.workload)]
    found += [(f"device {d.id}", ", ".join(filter(None, (d.name, d.arch, d.uuid)))) for d in result.devices]
    found += [("target", str(header.target)), ("strategy", header.strategy), ("fingerprint", header.fingerprint)]
    found += [(name, version) for name, version in sorted(header.versions.items())]
    return found + [(name, text) for name, value in header.settings.items() if (text := _setting(value))]


def _setting(value: Any) -> str:
    """Return a setting as text, or a group of those that have a value; empty for one that has none."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, item in value.items() if (text := _setting(item)))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


CANDIDATES = 5000
"""Most candidates that the plots show, fastest first."""
LONG = 24
"""Characters of an axis value from which on a plot cuts it."""
SPANS = 3000
"""Most spans that the timeline draws. A longer run shows its longest spans."""


def plot_data(result: Result, mattered: Importance | None, seconds: Seconds) -> dict[str, Any]:
    """Return what the page's script draws. Each candidate names its values by their place in `axes`."""
    timed = (record for record in result.all_records if record.status == "measured")
    measured = sorted(timed, key=lambda record: (record.latency_ms or 0.0, record.index))
    axes = _axes([record for record in measured if record is not result.baseline], mattered)
    final = {entry.index for entry in result.final}
    places = {name: {label: i for i, label in enumerate(labels)} for name, labels in axes.items()}
    rows = [
        [r.index, r.latency_ms, int(r.index in final)]
        + [place.get(value_text(r.config[name])) if name in r.config else None for name, place in places.items()]
        for r in measured[:CANDIDATES]
    ]
    default = result.default
    return {
        "axes": [{"name": name, "labels": _cut(labels)} for name, labels in axes.items()],
        "candidates": rows,
        "left_out": len(measured) - len(rows),
        "winner": result.best_index,
        "reference_ms": result.reference_ms,
        "default": None if default is None else default.credited,
        "default_ms": None if default is None else default.latency_ms,
        "steps": [[s.seconds, s.latency_ms, s.tried, s.index] for s in result.best_over_time],
        "end_s": result.wall_s,
        "timeline": timeline_data(seconds),
    }


def _axes(records: Sequence[Record], mattered: Importance | None) -> dict[str, list[str]]:
    """Return the axes of several values, those that mattered most first, each with its values in order, as text."""
    names = list(mattered.shares) if mattered is not None else []
    names += [name for name in dict.fromkeys(n for r in records for n in r.config) if name not in names]
    axes = {name: in_order(r.config[name] for r in records if name in r.config) for name in names}
    return {name: labels for name, labels in axes.items() if len(labels) > 1}


def in_order(values: Iterable[Any]) -> list[str]:
    """Return values as text, each once: numbers by size, then the others."""
    known = {value_text(value): value for value in values}

    def place(label: str) -> tuple[bool, float, str]:
        value = known[label]
        number = isinstance(value, int | float) and math.isfinite(value)
        return not number, value if number else 0.0, label

    return sorted(known, key=place)


def value_text(value: Any) -> str:
    """Return an axis value as text: a text, a truth and None as they are, anything else as JSON."""
    return printable(str(value) if isinstance(value, str | bool | None) else json.dumps(value, default=str))


def _cut(labels: list[str]) -> list[str]:
    """Return labels with the middle of long ones left out, as long as all still differ."""
    short = [v if len(v) <= LONG else f"{v[: LONG // 2]}…{v[1 - LONG // 2 :]}" for v in labels]
    return short if len(set(short)) == len(labels) else labels


def timeline_data(seconds: Seconds) -> dict[str, Any]:
    """Return the data of the timeline's drawing: the longest spans of each worker and device, by their hosts."""

    def place(name: str) -> tuple[bool, str, int, str]:
        host = name.removeprefix("device ").rpartition("/")[0]  # node-0 of node-0/1; empty on one machine
        return name.startswith("device "), host, len(name), name  # sorts compile-10 after compile-9

    rows: dict[str, list[tuple[str, float, float, str]]] = {}
    shown = [span for span in seconds.spans if span[1] != "again"]
    drawn = sorted(shown, key=lambda one: one[2] - one[3])[:SPANS]
    for on, kind, since, until, first, n in drawn:
        what = f"of {n} candidates" if kind == "final" else f"candidate {first}" if n == 1 else f"{n} candidates"
        name = on if kind in ("lower", "build") else f"device {on}"
        rows.setdefault(name, []).append((kind, round(since, 4), round(until, 4), what))
    return {
        "rows": [{"name": name, "spans": rows[name]} for name in sorted(rows, key=place)],
        "parts": [round(began, 4) for began in seconds.parts],
        "end_s": max((until for _, _, _, until, *_ in shown), default=0.0),
        "text": f"Only the {SPANS:,} longest of {len(shown):,} spans are drawn." if len(shown) > SPANS else "",
    }


LIBRARIES = ("d3", "plot.umd")
"""The scripts in `vendored` that draw the plots, unchanged, in the order in which the page loads them."""


def page(title: str, parts: Iterable[Mapping[str, Any]], plain: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a page. `parts`: its sections, which PARTS of `page.js` draws by their ``kind``; empty ones are left out.

    `plain`: the text for readers without a script. `data`: what the plots among the parts draw; None if there are none.
    """
    shown = [part for part in parts if part.get("rows", True) and part.get("items", True)]
    whole = _page(title, shown, plain, data)
    for most in (1000, 100, 10):
        if len(whole.encode()) < MOST_BYTES:
            break
        left = {"kind": "list", "title": "Cut", "items": ["The whole page is larger than 2 MB: atune export has all."]}
        whole = _page(title, _cut_to([left, *shown], most), plain[: 100 * most], None)
    return whole


def _page(title: str, parts: Iterable[Mapping[str, Any]], plain: str, data: Mapping[str, Any] | None) -> str:
    content = _safe({"title": title, "parts": parts, **(data or {})})
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    drawn = "begin();" if data is None else file_text("plots.js")
    texts = {
        "@TITLE@": escape(title),
        "@PAGE@": f"<noscript><h1>{escape(title)}</h1><pre>{escape(plain)}</pre></noscript>",
        # Only "<" can end a script element or begin a comment in it, and a journal may come from a stranger.
        "@DATA@": text.replace("<", "\\u003c"),
        "@LIBRARIES@": "" if data is None else "\n".join(map(_script, LIBRARIES)),
        "@SCRIPT@": f"{file_text('page.js')}\n{drawn}",
    }
    template = file_text("report_page.html")
    return re.sub("|".join(texts), lambda place: texts[place[0]], template)  # texts may hold "@DATA@"


def _cut_to(value: Any, most: int, depth: int = 0) -> Any:
    """Return data of a page without plots, with at most this many entries of each list, and short texts."""
    if isinstance(value, Mapping) and depth < DEPTH:
        return {str(name)[:most]: _cut_to(item, most, depth + 1) for name, item in list(value.items())[:most]}
    if isinstance(value, list | tuple) and depth < DEPTH:
        kept = [one for one in value if not (isinstance(one, Mapping) and one.get("kind") == "plot")]
        return [_cut_to(one, most, depth + 1) for one in kept[:most]]
    return value if value is None or isinstance(value, bool | int | float) else shortened(str(value), 4 * most)


def _safe(value: Any) -> Any:
    """Return data that JSON has, its texts without control characters."""
    if isinstance(value, Mapping):
        return {printable(str(name)): _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return "\u00a0".join(map(printable, str(value).split("\u00a0")))


def _script(name: str) -> str:
    """Return a library as a script element. It begins with its licence, which goes where the page goes."""
    licence = file_text(f"vendored/{name.partition('.')[0]}.LICENSE")
    return f"<script>/*\n{licence}*/\n{file_text(f'vendored/{name}.min.js')}</script>"


def file_text(name: str) -> str:
    """Return a file of this folder, such as the script of a page."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
