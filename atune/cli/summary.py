"""The summary of a result that the command line prints."""

from __future__ import annotations

import shlex

from atune.journal.failures import first_failure_lines
from atune.journal.printing import printable
from atune.journal.result import TuneResult, failure_lines
from atune.reporting.checked import unchecked_lines
from atune.reporting.efficiency import roofline_lines
from atune.reporting.headline import headline_lines, no_winner_line
from atune.reporting.progress import duration


def summary_text(result: TuneResult) -> str:
    """Return the result's summary as text."""
    lines = []
    if result.best is None or result.latency_ms is None:
        lines.append(f"no winner: {no_winner_line(result)}")
    else:
        lines += headline_lines(result)
        lines += unchecked_lines(result)
        lines += roofline_lines(result)
    lines += _count_lines(result)
    if result.axis_importance is not None:
        lines.append(f"axes that mattered: {printable(result.axis_importance.describe())}")
    if result.stored:
        lines.append(f"reused     {result.stored} of {result.built} libraries of kernels, from the artifact store")
    lines += _end_lines(result)
    lines += [f"noise      {printable(text)}" for text in result.noise]
    if result.journal is not None:
        lines.append(f"journal    {printable(result.journal)}")
    return "\n".join(lines)


def _count_lines(result: TuneResult) -> list[str]:
    """Return how many candidates had which outcome, and why those that failed did."""
    counts = (
        f"{result.measured} measured, {result.failed} failed, {result.pruned} pruned, {result.duplicates} duplicates"
    )
    left = f", {result.remaining} remaining" if result.remaining else ""
    points = "points    " if result.remaining and result.header is not None and result.header.large else "candidates"
    lines = [f"{points} {result.total}: {counts}{left}; {duration(result.wall_s)}"]
    lines += [f"           {line}" for line in failure_lines(result)]
    return lines + [f"             {line}" for line in first_failure_lines(result)]


def _end_lines(result: TuneResult) -> list[str]:
    """Return how the run ended, where that is worth a line, and what its audit found."""
    lines = []
    if not result.finished:
        lines.append(f"ended      {_unfinished(result)}")
    if result.audited is not None:
        a = result.audited
        told = (
            f"none of them tried: {a.missing}" if a.missing else f"{a.tried} of them tried: {a.wrong} were the fastest"
        )
        lines.append(f"audit      {a.skipped} skipped as likely to lose, {told}")
    return lines


def _unfinished(result: TuneResult) -> str:
    on = ""
    if result.journal is not None:
        named = result.header is not None and result.header.origin
        workload = "" if named else " --workload FILE.py:NAME"  # it came by value, from a script or a notebook
        on = f"; atune resume {shlex.quote(result.journal)}{workload} goes on"
    return f"interrupted{on}" if result.interrupted else f"not yet: the run is under way, or was killed{on}"
