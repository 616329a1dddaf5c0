"""Render the results of a set as text, as data and as an HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.set_folder import TunedProblem, header_of_set, tuned_problems
from atune.model.candidate import describe_config, printable
from atune.reporting.export import aligned
from atune.reporting.report import environment, page
from atune.reporting.sets import cover, dispatch_rule, regret_matrix
from atune.reporting.summary import failure_groups, no_winner_line, summary
from atune.reporting.text import Line, plain

COLUMNS = {"problem": None, "latency ms": None, "× default": 2, "× reference": 2, "winner": None}
"""The columns of the table, each with the number of decimals that the page shows."""


def row_of(row: TunedProblem) -> tuple[str, float | None, float | None, float | None, str]:
    """Return a problem's row, with a cell for each of `COLUMNS`. If there is no winner, the last cell says why."""
    result = row.result
    if result is None or result.best is None:
        return str(row.problem), None, None, None, reason_of(row)
    winner = describe_config(result.best.config) + " (so far)" * (not result.finished)
    return str(row.problem), result.latency_ms, result.default_ratio, result.reference_ratio, winner


def row_line(row: TunedProblem) -> str:
    """Return a problem's outcome as a line of text."""
    problem, latency_ms, default, _, winner = row_of(row)
    ratio = f", {default:.2f} × as fast as the default" if default else ""
    return f"{problem}: {'' if latency_ms is None else f'{latency_ms:.4g} ms{ratio}; '}{winner}"


def reason_of(row: TunedProblem) -> str:
    """Return the reason that a problem has no winner, as a line of text."""
    if row.result is None:
        return printable(next(iter(row.error.splitlines()), "it could not be tuned"))
    groups = failure_groups(row.result.records)
    return no_winner_line(row.result) + (f": {groups[0].line}" if groups else "")


def set_lines(rows: Sequence[TunedProblem], folder: Path) -> list[Line]:
    """Return the lines that a screen shows for a set: the table, a summary, and the folder with the journals."""
    shown = [
        (problem, f"{latency_ms:.4g}", *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios), winner)
        for problem, latency_ms, *ratios, winner in map(row_of, rows)
        if latency_ms is not None
    ]
    lines = [*map(Line, aligned([tuple(COLUMNS), *shown]).splitlines()), Line("")] if shown else []
    lines += [*_sums(rows), Line(f"journals   {printable(str(folder))}", "dim")]
    if any(row.unfinished for row in rows):
        header = header_of_set(folder)
        named, place = header is not None and header.origin, shlex.quote(printable(str(folder)))
        how = f"atune resume {place}" if named else f"tune the set again with journal={place}"
        lines.append(Line(f"next       {how}"))
    return lines


def _sums(rows: Sequence[TunedProblem]) -> list[Line]:
    """Return the lines of the summary: the counts, the cover, the dispatch rule, the failures and the warnings."""
    won, tried = [row for row in rows if row.won], [row.result for row in rows if row.result is not None]
    measured = sum(result.measured for result in tried)
    counts = f"{len(won)} of {len(rows)} {'has' if len(won) == 1 else 'have'} a winner; {measured} candidates measured"
    lines = [Line(f"problems   {counts}", "strong")]
    lines += _shared(won) if len(won) > 1 else []
    if unfinished := [row for row in rows if row.unfinished]:
        waiting = sum(row.result is None for row in unfinished)
        text = f"{len(unfinished)} of {len(rows)} problems{f', {waiting} of them not begun' if waiting else ''}"
        lines.append(Line(f"unfinished {text}", "attention"))
    for row in rows:
        if not (row.won or row.unfinished):
            shows = row.result is not None and row.result.failed and row.result.journal
            full = f"; full output: atune show {shlex.quote(printable(shows))}" if shows else ""
            lines.append(Line(f"failed     {row.problem}: {reason_of(row)}{full}", "attention"))
    said = {result.about_default for result in tried if result.best is None}  # the lines above say this
    warnings = dict.fromkeys(text for result in tried for text in result.warnings if text not in said)
    return lines + [Line(f"warning    {printable(text)}", "attention") for text in warnings]


def _shared(won: Sequence[TunedProblem]) -> list[Line]:
    """Return a line about a cover of all problems, and a line about the dispatch rule and its regret."""
    try:
        matrix = regret_matrix(won)
    except UsageError:
        return []  # the runs cannot be compared, for example because they had different targets
    few, rule = cover(matrix), dispatch_rule(matrix)
    several = len(few.configs) > 1
    serve = f"{len(few.configs)} configuration{'s serve' if several else ' serves'} all problems"
    text = f"{serve}, at most {_percent(few.worst_regret)} slower than the winners{' (chosen greedily)' * several}"
    lines = [Line(f"cover      {text}")]
    if rule.regret is not None and rule.worst_regret is not None:
        regret = f"{_percent(rule.regret)} slower on average, {_percent(rule.worst_regret)} at worst"
        left = f"with each of {rule.tested} problems left out in turn, that winner is {regret}"
        left += f"; unknown for {rule.unmeasured} more" if rule.unmeasured else ""
        lines.append(Line(f"rule       other problems use the nearest problem's winner; {left}"))
    return lines


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):g} %"  # two digits, without an exponent


def set_data(rows: Sequence[TunedProblem], folder: Path) -> dict[str, Any]:
    """Return the object that ``--json`` prints for a set. Each problem has a summary, or if it failed, an error."""
    problems = []
    for row in rows:
        problem = (row.problem if row.result is None else row.result.header).arguments
        data = {"problem": msgspec.to_builtins(problem)}
        problems.append(data | ({"error": row.error} if row.result is None else summary(row.result)))
    return {
        "problems": problems,
        "winners": sum(row.won for row in rows),
        "measured": sum(row.result.measured for row in rows if row.result is not None),
        "journal": str(folder),
    }


def set_report(folder: Path) -> str:
    """Return the page for a set. Raises `UsageError` if `folder` has no set, `JournalError` if a journal is damaged."""
    return set_page(tuned_problems(folder), folder)


def set_page(rows: Sequence[TunedProblem], folder: Path) -> str:
    """Return the page for the problems of a set. `folder`: the folder with the journals."""
    begun = [row.result for row in rows if row.result is not None]
    kernel = next((result.header.workload for result in begun), "a set")
    first, *others = [environment(result) for result in begun] or [[]]
    shared = [row for row in first if row[0] != "journal" and all(row in other for other in others)]
    parts: list[dict[str, Any]] = [
        {"kind": "list", "title": "Results", "items": [line.text for line in _sums(rows)]},
        {
            "kind": "table",
            "id": "all",
            "name": "problems",
            "title": "Problems",
            "text": "A ratio above 1 means that the winner is faster than the default or the reference.",
            "columns": [{"title": name, "decimals": decimals, "whole": True} for name, decimals in COLUMNS.items()],
            "rows": [_row(row) for row in rows],
        },
        {"kind": "facts", "id": "environment", "title": "Environment", "rows": [("journals", str(folder)), *shared]},
    ]
    title = f"{printable(kernel)}: {len(rows)} {'problem' if len(rows) == 1 else 'problems'}"
    return page(title, parts, plain(set_lines(rows, folder)))


def _row(row: TunedProblem) -> dict[str, Any]:
    config = None if row.result is None else row.result.best_config
    return {
        "cells": row_of(row),
        "class": "" if row.won or row.unfinished else "bad",
        "config": {"problem": row.problem.arguments, "config": config},
    }
