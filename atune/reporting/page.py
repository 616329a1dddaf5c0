"""The parts of the report's page around its plots: the winner and its kernel, warnings, failures, the environment."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from atune.errors import AtuneError
from atune.journal.events import RunStarted
from atune.journal.result import Ratio, Result
from atune.journal.state import State
from atune.model.artifact import what_failed
from atune.model.candidate import Config, printable
from atune.model.device import DeviceInfo
from atune.model.options import options_of
from atune.model.roofline import Roofline, rate_text
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.reporting.explanation import fact_rows
from atune.reporting.layout_notes import layouts_line
from atune.reporting.progress import duration
from atune.reporting.summary import (
    PRUNED,
    FailureGroup,
    comparison,
    default_line,
    failure_groups,
    no_winner_line,
    over_default,
    over_reference,
    ties_line,
    why_unchecked,
)
from atune.reporting.timeline import host_of

GROUPS = 50
"""Most reasons for failures that the page has."""
DETAIL = 4000
"""Most characters of a compiler's or device's output that the page has of each."""
SOURCE = 100_000
"""Most characters of the winner's source on the page."""


def page_title(result: Result) -> str:
    """Return the workload's name with its problem."""
    header = result.header
    if header is None:
        return "atune report"
    problem = ", ".join(f"{name}={value}" for name, value in header.arguments.items())
    return printable(f"{header.workload} {problem}".strip())


def head_section(result: Result) -> str:
    """Return the page's head: what was tuned, the winner's card, and what became of the candidates."""
    best = result.best
    lines = [f"<h1>{unbroken(page_title(result))}</h1>", '<section id="winner">']
    if best is None:
        why = no_winner_line(result)
        lines.append(f"<p>{breakable(why[0].upper() + why[1:])}.</p>")
    else:
        lines += [figures_html(winner_figures(result)), _config(best.config)]
        lines += [f"<p>{breakable(line)}</p>" for line in winner_notes(result)]
    lines += [f'<p class="soft">{_origin(result)}</p>', "</section>"]
    return "\n".join([*lines, f"<p>{counts_html(result)}</p>"])


def figures_html(figures: Iterable[tuple[str, str]]) -> str:
    """Return figures, each with what it says, as HTML."""
    shown = (f"<div><b>{escape(number)}</b> <span>{escape(text)}</span></div>" for number, text in figures)
    return "\n".join(['<div class="figures">', *shown, "</div>"])


def winner_figures(result: Result) -> list[tuple[str, str]]:
    """Return the winner's figures, each with what it says: how it compares, and its latency."""
    known = []
    if (ratio := over_default(result)) is not None and not result.default_wins:
        known.append(_compared(ratio, "the default configuration", result.default_ms))
    known.append((f"{result.latency_ms:.4g} ms", "latency" if result.final else "latency, by first timing"))
    if (ratio := over_reference(result)) is not None:
        known.append(_compared(ratio, "the reference", result.reference_ms))
    return known


def _compared(ratio: Ratio, than: str, latency_ms: float | None) -> tuple[str, str]:
    """Return a ratio as a figure, and what it is, such as ``2.50×`` and ``faster than the reference (2.5 ms)``."""
    number, times, text = comparison(ratio, than).partition(" times ")
    if not times:
        number, text = f"{ratio[1]:.2f}", number
    return f"{number}×", text + ("" if latency_ms is None else f" ({latency_ms:.4g}\u00a0ms)")


def _config(config: Config) -> str:
    """Return the winner's configuration, and as JSON what its buttons copy."""
    shown = unbroken(", ".join(f"{name}={value!r}" for name, value in config.items()))
    text = escape(printable(json.dumps(config, default=str)))
    return f'<div id="config" data-config="{text}"><code>{shown or "the defaults of the kernel"}</code></div>'


def winner_notes(result: Result) -> list[str]:
    """Return what else there is to say of the winner, a sentence each."""
    faster = not result.default_wins and (result.default_ratio or 0.0) >= 1.0  # the figures say it
    lines = [] if faster else [default_line(result)]
    lines = [f"{line[0].upper()}{line[1:]}." for line in (*lines, ties_line(result)) if line]
    if why := why_unchecked(result):
        lines.append(f"Its outputs were not checked: {why}.")
    if line := layouts_line(result):
        lines.append(f"Layouts: {line}.")
    if not result.finished:
        lines.append("The run has not finished: this is the best configuration so far, by first timing.")
    return lines


def measured_on(devices: Sequence[DeviceInfo]) -> str:
    """Return the devices' models for a heading: each with its count, and on how many hosts where there are several."""
    hosts = {host_of(device.id) for device in devices}
    if len(hosts) < 2:
        return ", ".join(device.name for device in devices) or "no device"
    counts = Counter(device.name for device in devices)
    return f"{', '.join(f'{count} × {name}' for name, count in counts.items())}, on {len(hosts)} hosts"


def _origin(result: Result) -> str:
    """Return where and when the run was, and the command that starts another like it, as HTML."""
    header = result.header
    if header is None:
        return "no run"
    target = {"c": "CPU, compiled as C"}.get(header.target.kind, str(header.target))
    when = datetime.fromtimestamp(header.time, UTC) if math.isfinite(header.time) else None
    parts = [f"{measured_on(result.devices)}, {target}"]
    parts += [f"{when:%Y-%m-%d %H:%M} UTC"] if when is not None else []
    parts += [f"{duration(result.wall_s)}{'' if result.finished else ' so far'}"]
    text = " · ".join(f'<span class="word">{breakable(part)}</span>' for part in parts)
    return f"{text} · <code>{unbroken(command)}</code>" if (command := command_of(header)) else text


def command_of(header: RunStarted) -> str:
    """Return the command that starts such a run, with all settings that are not the default.

    Empty where the workload came from no file.
    """
    if not header.origin:
        return ""
    words = ["atune", "tune", header.origin, "--strategy", header.strategy]
    budget = header.settings.get("budget")
    for name, unit in (("candidates", ""), ("percent", "%"), ("seconds", "s")):
        limit = budget.get(name) if isinstance(budget, Mapping) else None
        words += [] if limit is None else ["--budget", f"{limit:g}{unit}" if _is_number(limit) else str(limit)]
    if header.settings.get("seed"):
        words += ["--seed", str(header.settings["seed"])]
    for group, kind in (("compile", CompileSettings), ("benchmark", BenchmarkSettings)):
        given = header.settings.get(group)
        for name, field in options_of(kind).items():
            value = given.get(name, field.default) if isinstance(given, Mapping) else field.default
            if field.option.flag and value != field.default:
                words += _flag(field.option.flag, value)
    return printable(shlex.join(words))


def _flag(flag: str, value: Any) -> list[str]:
    """Return a setting as the command line has it; ``--skip-…`` and ``--no-…`` switch off."""
    if value is False and not flag.startswith("--skip-"):
        return [f"--no-{flag.removeprefix('--')}"]
    return [flag] if isinstance(value, bool) else [flag, str(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def counts_html(result: Result) -> str:
    """Return what became of the candidates, as HTML: the outcomes that there were, then the others in a sentence."""
    named = {
        "measured": "measured",
        "failed": "failed",
        "pruned": "pruned",
        "duplicates": "duplicate",
        "remaining": "untried",
    }
    counts = {text: getattr(result, name) for name, text in named.items()}
    some = [f'<b class="word{" bad" * (text == "failed")}">{n:,} {text}</b>' for text, n in counts.items() if n]
    none = [text for text, n in counts.items() if not n]
    zero = [f"0 {' or '.join(filter(None, [', '.join(none[:-1]), none[-1]]))}"] if none else []
    one = "candidate" if result.total == 1 else "candidates"
    return f"{result.total:,} {one}: {'; '.join(filter(None, [', '.join(some), *zero]))}."


def failures_section(result: Result) -> str:
    """Return the failures, grouped by reason, the most frequent first; empty without any."""
    groups = failure_groups(result.records)
    if not groups:
        return ""
    text = "By reason, the most frequent first, each with an example and what its compiler or device wrote."
    lines = ['<section id="failures">', f'<h2>Failures and pruned candidates</h2><p class="soft">{text}</p>']
    lines += [_failure(group, result.journal) for group in groups[:GROUPS]]
    if len(groups) > GROUPS:
        lines.append(f"<p>{len(groups) - GROUPS:,} more reasons are in the journal.</p>")
    return "\n".join([*lines, "</section>"])


def _failure(group: FailureGroup, journal: str | None) -> str:
    """Return a reason. What was written stands below, folded where the line of the user's code is known."""
    colour = "" if group.kind == PRUNED else ' class="bad"'
    what = printable(what_failed(group.kind))
    such = "For example: " if group.varied else ""
    lines = [f"<h3{colour}>{group.count:,} {escape(what)}</h3>", f"<p>{such}{breakable(group.message)}</p>"]
    where, detail = group.where, group.first.detail[-DETAIL:]
    if where is not None:
        lines.append(_written("\n".join(map(printable, where.lines()))))
    example = f"For example candidate {group.first.index}: {group.example}"
    lines.append(f'<p class="soft">{unbroken(example)}</p>')
    if detail and where is not None:
        lines.append(f"<details><summary>All that was written</summary>{_written(detail)}</details>")
    elif detail:
        lines.append(_written(detail))
    return "\n".join(lines)


def _written(text: str) -> str:
    return f'<pre class="output" tabindex="0">{escape(text)}</pre>'


def warnings_section(texts: Iterable[str]) -> str:
    """Return warnings, each once; empty without any."""
    items = [f"<li>{breakable(text)}</li>" for text in dict.fromkeys(texts)]
    return "\n".join(["<h2>Warnings</h2>", "<ul>", *items, "</ul>"]) if items else ""


def environment_section(rows: Iterable[tuple[str, str]]) -> str:
    """Return where and with what a run was, as a table."""
    lines = (
        f'<tr><th scope="row">{escape(printable(name))}</th><td>{unbroken(value)}</td></tr>' for name, value in rows
    )
    return "\n".join(['<h2>Environment</h2><table id="environment">', *lines, "</table>"])


def kernel_section(result: Result) -> str:
    """Return the facts, layouts and roofline of the winner; empty where none is known."""
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
    """Return how near the winner comes to the device's peaks, as a table with bars."""
    rows = [] if result.roofline is None else _roofline_rows(result.roofline)
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("roofline", "rate", "of the device's nominal peak"))
    return f"<table><tr>{heads}</tr>{''.join(rows)}</table>"


def _roofline_rows(found: Roofline) -> list[str]:
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
        rows.append(f'<tr><th scope="row">{what}</th><td>{shown}</td><td class="bar">{bar}</td></tr>')
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


def breakable(text: str) -> str:
    """Return text as HTML on one line; paths and long lists may be broken after ``/``, ``,``, ``=`` and ``:``."""
    marked = printable(text)
    for sign in "/,=:":
        marked = marked.replace(sign, f"{sign}\0")
    return escape(marked).replace("\0", "<wbr>")


def unbroken(text: str) -> str:
    """Return text as HTML on one line that is broken at spaces alone, as long as a word fits a line."""
    return " ".join(f'<span class="word">{breakable(word)}</span>' for word in text.split(" ") if word)


def environment(result: Result) -> list[tuple[str, str]]:
    """Return where and with what a run was: names and values."""
    header = result.header
    assert header is not None
    rows = [("journal", result.journal or "none"), ("workload", header.origin or header.workload)]
    rows += [(f"device {d.id}", ", ".join(filter(None, (d.name, d.arch, d.uuid)))) for d in result.devices]
    rows += [("target", str(header.target)), ("strategy", header.strategy), ("fingerprint", header.fingerprint)]
    rows += [(name, version) for name, version in sorted(header.versions.items())]
    rows += [(name, text) for name, value in header.settings.items() if (text := _setting(value))]
    return rows


def parts_of(state: State) -> list[tuple[str, str]]:
    """Return how often a run was resumed, and with which accepted differences, as `environment` does."""
    if state.resumed is None:
        return []
    rows = [("parts", str(state.resumed.part + 1))]
    return rows + [("accepted difference", text) for text in state.resumed.accepted]


def _setting(value: Any) -> str:
    """Return a setting as text, or a group of those that have a value; empty for one that has none."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, item in value.items() if (text := _setting(item)))
    return "" if value is None else json.dumps(value, default=str)
