"""A comparison as text: how many problems are slower, what changed, and a table of the problems."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from atune.model.candidate import describe_config, printable
from atune.reporting.export import aligned
from atune.reporting.screen import Line
from atune.reporting.sets.compare import ComparedProblem, Comparison, Difference, percent

WINNER = "winner"
"""The last column."""
HEADS = ("problem", "before ms", "after ms", "ratio", "95 % interval", "", WINNER)
NAMED = 5
"""Problems of one side alone that are named."""


def comparison_lines(found: Comparison) -> list[Line]:
    """Return the answer, what changed besides the winners, and what makes the ratios doubtful."""
    limit = f"by more than {percent(found.fail_over)}"
    count = f"{len(found.problems)} problem{'s' * (len(found.problems) > 1)}"
    lines = [Line(f"compared   {count}, none clearly slower {limit}", "answer")]
    if found.slower:
        lines = [Line(f"slower     {len(found.slower)} of {count} {limit}", "error")]
    lines += [Line(f"{'' if n else 'changed':11}{text}") for n, text in enumerate(_changes(found))]
    lines += [Line(f"doubtful   {printable(note)}", "attention") for note in found.notes]
    kernels = {one.kernel for one in found.problems}
    known = f"{kernels.pop()} " if len(kernels) == 1 else ""  # the table names no kernel then
    for label, names in (("only before", found.only_before), ("only after", found.only_after)):
        if names:
            if all(name.startswith(known) for name in names):
                names = tuple(name.removeprefix(known) for name in names)
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            lines.append(Line(f"{label}: {printable('; '.join(names[:NAMED]))}{more}", "attention"))
    return lines


def comparison_table(found: Comparison) -> str:
    """Return the problems as a table, the slowest first. A ratio above 1 is slower than before."""
    several = len({one.kernel for one in found.problems}) > 1
    ordered = sorted(found.problems, key=_slowness, reverse=True)
    return aligned([HEADS, *(_row(one, several) for one in ordered)])


def _slowness(one: ComparedProblem) -> float:
    return one.ratio[1] if one.ratio else math.inf if one.slower else 0.0


def _row(one: ComparedProblem, several: bool) -> tuple[str, ...]:
    name = describe_config(one.problem) or "no arguments"
    ratio = interval = ""
    if one.ratio is not None:
        ratio, interval = f"{one.ratio[1]:.3f}", f"{one.ratio[0]:.3f}–{one.ratio[2]:.3f}"
    return (
        f"{printable(one.kernel)} {name}" if several else name,
        _latency(one.before.latency_ms),
        _latency(one.after.latency_ms),
        ratio,
        interval,
        _verdict(one),
        _winner(one),
    )


def _latency(latency_ms: float | None) -> str:
    return "none" if latency_ms is None else f"{latency_ms:.4g}"


def _verdict(one: ComparedProblem) -> str:
    if one.slower:
        return "slower"
    return "faster" if one.ratio is not None and one.ratio[2] < 1 else ""


def _winner(one: ComparedProblem) -> str:
    """Return what changed in the winner: its values by axis, or its code alone."""
    if one.before.config is None or one.after.config is None:
        return "" if one.after.config is None else describe_config(one.after.config)
    if one.config:
        return ", ".join(map(_change, one.config))
    other = " and ".join(what for what, differs in (("code", one.code), ("layouts", one.layouts)) if differs)
    return f"same values, other {other}" if other else "same"


def _changes(found: Comparison) -> list[str]:
    """Return what else changed, each once, and on how many problems where it did not on all."""
    counts = Counter(_change(each) for one in found.problems for each in one.setup)
    everywhere = len(found.problems)
    texts = [text if n == everywhere else f"{text} (on {n} of {everywhere})" for text, n in counts.items()]
    code = sum(one.code for one in found.problems)
    return [*texts, f"the code of {code} of {everywhere} winner{'s' * (everywhere > 1)}"] if code else texts


def _change(each: Difference) -> str:
    return printable(f"{each.name} {_text(each.before)} → {_text(each.after)}")


def _text(value: Any) -> str:
    return "none" if value is None or value == "" else str(value)
