"""The report's plots: which there are, what they say, and their data. `report_page.js` draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from atune.journal.candidate_state import Improvement
from atune.journal.result import Record, Result
from atune.model.candidate import printable
from atune.reporting.candidates import value_text
from atune.reporting.importance import Importance
from atune.reporting.plot import by_latency, drawable
from atune.reporting.timeline import Timeline

CANDIDATES = 5000
"""Most candidates that the plots show, fastest first."""
STEPS = 24
"""Most improvements that the table shows which stands where no script runs: the last ones."""
LONG = 24
"""Characters of an axis value from which on a plot cuts it."""


def plot_data(result: Result, mattered: Importance | None, timeline: Timeline) -> dict[str, Any]:
    """Return what the page's script draws. Each candidate names its values by their place in `axes`."""
    measured = by_latency(result.all_records)
    axes = _axes([record for record in measured if record is not result.baseline], mattered)
    final = {entry.index for entry in result.final}
    places = [{label: i for i, label in enumerate(axis["labels"])} for axis in axes]
    rows = [
        [r.index, r.latency_ms, int(r.index in final)]
        + [place.get(_label(r, axis["name"])) for axis, place in zip(axes, places, strict=True)]
        for r in measured[:CANDIDATES]
    ]
    default = result.default
    shown = [{"name": printable(axis["name"]), "labels": _cut(axis["labels"])} for axis in axes]
    return {
        "axes": shown,
        "candidates": rows,
        "left_out": len(measured) - len(rows),
        "winner": result.best_index,
        "latency_ms": result.latency_ms,
        "reference_ms": drawable(result.reference_ms),
        "default": None if default is None else default.index if default.same_as is None else default.same_as,
        "default_ms": None if default is None else drawable(default.latency_ms),
        "steps": [[s.seconds, s.latency_ms, s.tried, s.index] for s in improvements(result)],
        "end_s": result.wall_s,
        "timeline": timeline.data(),
    }


def improvements(result: Result) -> list[Improvement]:
    """Return when the best so far changed, where its latency can be drawn."""
    return [step for step in result.best_over_time if drawable(step.latency_ms) is not None]


def _axes(records: Sequence[Record], mattered: Importance | None) -> list[dict[str, Any]]:
    """Return the axes of several values, those that mattered most first, each with its values in order, as text."""
    names = list(mattered.shares) if mattered is not None else []
    names += [name for name in dict.fromkeys(n for r in records for n in r.config) if name not in names]
    axes = []
    for name in names:
        labels = in_order(r.config[name] for r in records if name in r.config)
        if len(labels) > 1:
            axes.append({"name": name, "labels": labels})
    return axes


def in_order(values: Iterable[Any]) -> list[str]:
    """Return values as text, each once: numbers by size, then the others."""
    known = {value_text(value): value for value in values}
    return sorted(known, key=lambda label: _order(known[label], label))


def _label(record: Record, name: str) -> str | None:
    return value_text(record.config[name]) if name in record.config else None


def _order(value: Any, label: str) -> tuple[bool, float, str]:
    number = isinstance(value, int | float) and math.isfinite(value)
    return not number, value if number else 0.0, label


def _cut(labels: list[str]) -> list[str]:
    """Return labels with the middle of long ones left out, as long as all still differ."""
    short = [v if len(v) <= LONG else f"{v[: LONG // 2]}…{v[1 - LONG // 2 :]}" for v in labels]
    return short if len(set(short)) == len(labels) else labels


def plot_sections(result: Result, mattered: Importance | None, data: dict[str, Any]) -> str:
    """Return the sections of the plots, empty and hidden until the script draws them, and the axes that mattered."""
    steps, axes, n = improvements(result), data["axes"], len(data["candidates"])
    parts = []
    if steps:
        parts.append(plot_section("search", "Best latency so far", _search_text(result, steps), _steps(steps)))
    if len(axes) > 1:
        x, y = axes[0]["name"], axes[1]["name"]
        text = f"The best latency in ms for each pair of values of {x} and {y}, whatever the other axes are."
        parts.append('<div class="pair">')
        parts.append(plot_section("heat", f"{x} and {y}", f"{text} The stronger the colour, the faster."))
    if result.measured:
        parts.append(_mattered(result, mattered))
    if len(axes) > 1:
        parts.append("</div>")
    if n > 1:
        text = "Each measured candidate once, the fastest first. Orange ones were timed again in the final."
        if data["left_out"]:
            text += f" The fastest {n:,} of {n + data['left_out']:,} are shown."
        parts.append(plot_section("rank", "Latency by rank", text))
    if n > 1 and len(axes) > 2:
        text = "A line for each candidate; the fastest tenth is strong, the winner orange. Drag along an axis to keep "
        text += "the lines that pass there, on several axes for those that pass all; click an axis to end it."
        parts.append(plot_section("parallel", "All axes at once", text))
    if data["timeline"]["rows"]:
        parts.append(plot_section("timeline", "Timeline", data["timeline"]["text"]))
    return "\n".join(parts)


def plot_section(name: str, title: str, text: str, instead: str = "") -> str:
    """Return a plot's section. `instead` is shown where no script runs; without it the section is hidden there."""
    hidden = "" if instead else " hidden"
    caption = f'<p class="soft">{escape(text)}</p>' if text else ""
    return f'<section id="{name}" data-plot{hidden}><h2>{escape(title)}</h2>{caption}{instead}</section>'


def _search_text(result: Result, steps: Sequence[Improvement]) -> str:
    tried, last = result.total - result.remaining, steps[-1]
    return (
        f"By first timings. The last improvement came after {last.seconds:.1f} s, when {last.tried:,} of the {tried:,} "
        "candidates were tried."
    )


def _steps(steps: Sequence[Improvement]) -> str:
    rows = "".join(
        f'<tr><td class="n">{s.seconds:.1f}</td><td class="n">{s.latency_ms:.4g}</td><td class="n">{s.tried:,}</td>'
        f'<td class="n">{s.index}</td></tr>'
        for s in steps[-STEPS:]
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("seconds", "ms", "tried", "candidate"))
    return f"<noscript><table><tr>{heads}</tr>{rows}</table></noscript>"


def _mattered(result: Result, found: Importance | None) -> str:
    """Return the axes that mattered as a table with bars, which needs no script."""
    if found is None:
        return (
            '<section id="mattered"><h2>Axes that mattered</h2>'
            '<p class="soft">Too few candidates were measured to tell.</p></section>'
        )
    text = f"How much of the differences in latency each axis explains by itself, from {found.candidates:,} candidates."
    lines = ['<section id="mattered"><h2>Axes that mattered</h2>', f'<p class="soft">{text}</p><table>']
    heads = ("axis", "share", "winner's value")
    lines.append(f"<tr>{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr>")
    best = result.best
    most = max([*found.shares.values(), found.unexplained]) or 1.0
    for name, share in [*found.shares.items(), ("", found.unexplained)]:
        value = value_text(best.config[name]) if best is not None and name in best.config else ""
        row, head = ("<tr>", printable(name)) if name else ('<tr class="rest">', "combinations and noise")
        lines.append(
            f'{row}<th scope="row">{escape(head)}</th>'
            f'<td class="bar"><i style="--of: {share / most:.3f}"></i>\u00a0{100 * share:.1f}\u00a0%</td>'
            f"<td>{escape(value)}</td></tr>"
        )
    return "\n".join([*lines, "</table></section>"])
