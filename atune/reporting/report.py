"""The report page: an HTML file with a journal's data and a script that draws the data. No other file is needed."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from atune.errors import AtuneError
from atune.journal.events import Event
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.journal.state import State, TimeSums
from atune.model.artifact import what_failed
from atune.model.candidate import describe_config, printable, shortened
from atune.reporting.export import facts_of, ranking, rows, table
from atune.reporting.progress import duration
from atune.reporting.summary import MOST_GROUPS, PRUNED, FailureGroup, failure_groups, headline, summary, summary_text

DETAIL, LINE = 4000, 300
"""The limits, in characters, for a compiler's or device's output, and for a line about a candidate's failure."""
SOURCE = 100_000
"""The largest number of characters of the winner's source on the page."""
MOST_PAGE_BYTES = 2_000_000
"""The size limit of a page. A larger page omits its slowest candidates, and if that is not enough, all plots."""
ON_PAGE, IN_TEXT, CHARACTERS = 3000, 300, 200_000
"""The limits of a page: candidates in the data, candidates in the plain text, and characters in the plain text."""
SPANS = 3000
"""The largest number of spans that the timeline draws. If a run has more spans, only the longest are drawn."""
PAGE_FIELDS = (
    "index", "status", "latency_ms", "times_winner", "spread", "mark", "registers", "stack_bytes", "smem_bytes",
    "threads", "occupancy_blocks", "fragment_registers", "redundant", "code_bytes", "outcome",
)  # fmt: skip
"""The fields of a candidate's row on the page. Each row also has the candidate's configuration."""


def report(journal: str | Path) -> str:
    """Return the page for `journal`. Raises `JournalError` if the journal cannot be read."""
    return page_of(JournalReader(journal), Path(journal))


def page_of(events: Iterable[Event], journal: Path | None = None) -> str:
    """Return the page for the events of a run, in order. `journal`: the path of the journal, which the page shows."""
    state = State.of(events)
    result = Result.of(state, journal, replayed=True)
    setting = environment(result)
    if state.resumed is not None:
        setting.append(("parts", str(state.resumed.part + 1)))
        setting += [("accepted difference", text) for text in state.resumed.accepted]
    parts = [
        card(result),
        {"kind": "list", "title": "Warnings", "items": list(dict.fromkeys(result.warnings + result.noise))},
        {"kind": "plots"},
        _failures(result),
        {"kind": "candidates"},
        *_kernel(result),
        {"kind": "facts", "id": "environment", "title": "Environment", "rows": setting},
    ]
    plain = f"{summary_text(result)}\n\n{table(result, IN_TEXT)}"
    title = f"{printable(result.header.workload)} {describe_config(result.header.arguments)}".strip()
    return page(title, parts, plain, run_data(result, state.seconds))


def run_data(result: Result, seconds: TimeSums) -> dict[str, Any]:
    """Return the data for the page's script: a summary, rows of the fastest candidates, and the timeline."""
    records, default = ranking(result), result.default
    fastest = rows(result, records[:ON_PAGE])
    shown = [span for span in seconds.spans if span.kind != "again"]
    longest = sorted(shown, key=lambda span: span.since - span.until)[:SPANS]
    return {
        "summary": {name: value for name, value in summary(result).items() if name != "failures"},
        "fields": [*PAGE_FIELDS, "config"],
        "rows": [
            [*(row[name] for name in PAGE_FIELDS[:-1]), shortened(row["outcome"], LINE), record.config]
            for record, row in zip(records, fastest, strict=False)
        ],
        "records": len(records),
        "timed": sum(record.status == "measured" for record in records),
        "winner": result.best_index,
        "default": None if default is None else default.credited,
        "spans": [[s.on, s.kind, round(s.since, 4), round(s.until, 4), s.first, s.candidates] for s in longest],
        "all_spans": len(shown),
        "parts_began": [round(began, 4) for began in seconds.parts],
    }


def card(result: Result) -> dict[str, Any]:
    """Return the first part of the page: the winner, or why there is none, and the number of candidates by outcome."""
    head, best = headline(result), result.best
    names = {"measured": "measured", "failed": "failed", "pruned": "pruned", "duplicates": "duplicate",
             "remaining": "untried"}  # fmt: skip
    notes = head.notes if result.finished or best is None else [
        *head.notes, "The run has not finished: this is the best configuration so far, by first timing.",
    ]  # fmt: skip
    models = Counter(device.name for device in result.devices).items()
    devices = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in models) or "no device"
    target = {"c": "CPU, compiled as C"}.get(result.header.target.kind, str(result.header.target))
    when = f"{datetime.fromtimestamp(result.header.time, UTC):%Y-%m-%d %H:%M} UTC"
    took = f"{duration(result.wall_s)}{'' if result.finished else ' so far'}"
    return {
        "kind": "card",
        "figures": head.figures,
        "config": None if best is None else best.config,
        "shown": head.winner,
        "notes": notes,
        "origin": [f"{devices}, {target}", when, took],
        "total": f"{result.total:,} {'candidate' if result.total == 1 else 'candidates'}",
        "counts": [[f"{n:,} {text}", text == "failed"] for name, text in names.items() if (n := getattr(result, name))],
    }


def _failures(result: Result) -> dict[str, Any]:
    """Return the part of the page that shows failures, grouped by reason. The largest group comes first."""
    groups = failure_groups(result.records)
    text = "Each line gives a reason, an example, and the compiler or device output. The most frequent reason is first."
    if len(groups) > MOST_GROUPS:
        text += f" The journal has {len(groups) - MOST_GROUPS:,} more reasons."
    return {"kind": "failures", "id": "failures", "title": "Failures and pruned candidates", "text": text,
            "items": [_failure(group) for group in groups[:MOST_GROUPS]]}  # fmt: skip


def _failure(group: FailureGroup) -> dict[str, Any]:
    where = group.where
    return {
        "bad": group.kind != PRUNED,
        "title": f"{group.count:,} {what_failed(group.kind)}",
        "text": f"{'For example: ' if group.varied else ''}{group.message}",
        "where": None if where is None else where.lines(),
        "example": f"For example, candidate {group.first.index}: {group.example}",
        "written": group.first.detail[-DETAIL:].splitlines(),
    }


def _kernel(result: Result) -> list[dict[str, Any]]:
    """Return the parts of the page about the winner: facts, and the source or the command that generates the source."""
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
    """Return names and values that describe a run: the journal, workload, devices, versions and settings."""
    header = result.header
    facts = [("journal", result.journal or "none"), ("workload", header.origin or header.workload)]
    facts += [(f"device {d.id}", ", ".join(filter(None, (d.name, d.arch, d.uuid)))) for d in result.devices]
    facts += [("target", str(header.target)), ("strategy", header.strategy), ("fingerprint", header.fingerprint)]
    facts += [(name, version) for name, version in sorted(header.versions.items())]
    return facts + [(name, text) for name, value in header.settings.items() if (text := _setting(value))]


def _setting(value: Any) -> str:
    """Return a setting or a group of settings as text. Return an empty string for a setting without a value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, item in value.items() if (text := _setting(item)))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


PAGE_LIBRARIES = ("d3", "plot.umd")
"""The unchanged scripts in `vendored` that draw the plots, in the order in which the page loads the scripts."""


def page(title: str, parts: Iterable[Mapping[str, Any]], plain: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a page. `parts`: the sections, each with the ``kind`` by which the script draws it (see PARTS). Empty
    sections are left out. `plain`: the text for browsers without scripts. `data`: what `run_data` returned, or None if
    the page has no plots."""
    plain = plain[:CHARACTERS]
    shown = [part for part in parts if part.get("rows", True) and part.get("items", True)]
    content = {"title": title, "parts": shown, **(data or {})}
    while len((whole := _page(content, plain, plots=data is not None)).encode()) >= MOST_PAGE_BYTES:
        if not content.get("rows"):
            left = "The whole page would be larger than 2 MB. atune export writes all records."
            text = {"kind": "text", "title": "Shortened", "text": left, "written": plain.splitlines()}
            return _page({"title": title, "parts": [text]}, plain, plots=False)
        content["rows"] = content["rows"][: len(content["rows"]) // 2]
    return whole


def _page(content: Mapping[str, Any], plain: str, *, plots: bool) -> str:
    title = escape(content["title"])
    text = json.dumps(_safe(content), separators=(",", ":"), allow_nan=False)
    texts = {
        "@TITLE@": title,
        "@PAGE@": f"<noscript><h1>{title}</h1><pre>{escape(plain)}</pre></noscript>",
        # Only "<" can end a script element or begin a comment in it, and a journal may come from a stranger.
        "@DATA@": text.replace("<", "\\u003c"),
        "@LIBRARIES@": "\n".join(map(_script, PAGE_LIBRARIES)) if plots else "",
        "@SCRIPT@": "\n".join(map(file_text, ("page.js", *["plots.js"] * plots))) + "\nbegin();",
    }
    template = file_text("report_page.html")
    return re.sub("|".join(texts), lambda place: texts[place[0]], template)  # in one pass, as texts may hold "@DATA@"


def _safe(value: Any) -> Any:
    """Return `value` as data for JSON, in which the control characters of strings are escaped."""
    if isinstance(value, Mapping):
        return {printable(str(name)): _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return "\u00a0".join(map(printable, str(value).split("\u00a0")))


def _script(name: str) -> str:
    """Return a script element that contains the library `name` and its licence."""
    licence = file_text(f"vendored/{name.partition('.')[0]}.LICENSE")
    return f"<script>/*\n{licence}*/\n{file_text(f'vendored/{name}.min.js')}</script>"


def file_text(name: str) -> str:
    """Return the content of a file in this folder, such as the page's script."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
