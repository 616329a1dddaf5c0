"""Which layouts of each configuration a run preferred, and why it passed over the others: a line, and a section."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from atune.journal.printing import describe_config
from atune.journal.result import Record, TuneResult
from atune.model.candidate import Config
from atune.reporting.page_parts import breakable

ROWS = 500
"""Most rows of the page's table."""
LIKELY = "likely: "
"""How the reason of a candidate that was passed over begins."""


class Chosen(msgspec.Struct, frozen=True):
    """Layouts of one configuration: the `preferred` one, and those that were `passed` over for it."""

    preferred: Record
    passed: tuple[Record, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes in which the layouts differ."""
        ours = self.preferred.config
        return tuple(name for name in ours if any(one.config.get(name) != ours[name] for one in self.passed))


def choice_of(records: Sequence[Record], index: int) -> str:
    """Return what the candidate `index` was passed over for or preferred to, in words; empty where nothing was."""
    [record] = [record for record in records if record.index == index]
    if record.instead is not None:
        return f"passed over for candidate {record.instead}: {record.message.removeprefix(LIKELY)}"
    others = [str(one.index) for one in records if one.instead == index]
    return f"preferred to candidate{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""


def chosen_layouts(result: TuneResult) -> list[Chosen]:
    """Return the choices of a run, by the preferred candidate's index; none where it measured all layouts."""
    passed: dict[int, list[Record]] = {}
    known = {record.index: record for record in result.records}
    for record in result.records:
        if record.instead is not None and record.instead in known:
            passed.setdefault(record.instead, []).append(record)
    return [Chosen(known[index], tuple(others)) for index, others in sorted(passed.items())]


def layouts_section(result: TuneResult) -> str:
    """Return the page's table of the layouts that were chosen before anything was measured; empty where none were."""
    groups = chosen_layouts(result)
    if not groups:
        return ""
    rows = [row for group in groups for row in _rows(group)]
    count = sum(len(group.passed) for group in groups)
    told = (
        f"Of {len(groups):,} configurations the layouts were compared before anything was measured, by what lowering "
        f"tells of them. {count:,} were passed over; an audit, if there was one, measured some of these."
    )
    if len(rows) > ROWS:
        told += f" Shown are {ROWS:,} of {len(rows):,} rows."
    titles = ("configuration", "candidate", "layout", "registers", "redundant iterations", "what was decided")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return "\n".join(
        [
            '<section id="layouts">',
            f'<h2>Layouts chosen by lowering</h2><p class="soft">{told}</p>',
            '<div class="scroll" tabindex="0" role="region" aria-label="chosen layouts, to scroll">',
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows[:ROWS])}</tbody></table>",
            "</div>",
            "</section>",
        ]
    )


def _rows(group: Chosen) -> list[str]:
    ours = group.preferred
    base = describe_config({name: value for name, value in ours.config.items() if name not in group.axes})
    latency = f", {ours.latency_ms:.4g} ms" if ours.latency_ms is not None else f", {ours.status}"
    rows = [_row(base or "the only one", ours, group.axes, f"<b>preferred</b>{escape(latency)}")]
    for one in group.passed:
        rows.append(_row("", one, group.axes, f"passed over: {breakable(one.message.removeprefix(LIKELY))}"))
    return rows


def _row(base: str, record: Record, axes: Sequence[str], decided: str) -> str:
    layouts = record.facts.layouts if record.facts is not None else None
    figures = ("–", "–") if layouts is None else (str(layouts.registers), str(layouts.redundant))
    layout: Config = {name: record.config[name] for name in axes if name in record.config}
    cells = (escape(base), str(record.index), escape(describe_config(layout)), *figures, decided)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
