"""What a user gives for several problems: results, journals, folders, and lists of these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.replay import replay
from atune.journal.result import Result
from atune.journal.set_folder import TunedProblem, journals_in
from atune.model.candidate import config_key, describe_config, printable
from atune.reporting.headline import no_winner_line
from atune.reporting.summary import failure_groups

Part = Result | str | os.PathLike[str]
Source = Part | Iterable["Part | TunedProblem"]
"""A result, a journal, a folder of journals, a set's result, or several of these."""


def parts(source: Source | TunedProblem) -> Iterator[Part]:
    """Yield what `source` consists of."""
    if isinstance(source, (Result, str, os.PathLike)):
        yield source
    elif isinstance(source, TunedProblem):
        yield from [] if source.result is None else [source.result]
    else:
        for each in source:
            yield from parts(each)


def results_of(source: Source) -> list[Result]:
    """Return the results that `source` holds: of a folder those of `journals_in`.

    Raises `JournalError` for a journal that cannot be read, and `UsageError` where there is none.
    """
    found = [result for part in parts(source) for result in _results(part)]
    if not found:
        raise UsageError(f"{_shown(source)} has no journals: give a journal, a folder of *.jsonl, or a list of these")
    return found


def why(row: TunedProblem) -> str:
    """Return why a problem has no winner, on one line."""
    if row.error or row.result is None:
        return printable(next(iter(row.error.splitlines()), "it could not be tuned"))
    groups = failure_groups(row.result.records)
    return no_winner_line(row.result) + (f": {groups[0].line}" if groups else "")


def header_of(result: Result) -> RunStarted:
    """Return the header of a result. Raises `UsageError` where its run never began."""
    if result.header is None:
        raise UsageError("a result without a header, of a run that never began, has no problem")
    return result.header


def problem_key(header: RunStarted) -> str:
    """Return a text that is equal for equal problems, also where one comes from a file."""
    return config_key(header.arguments)


def problem_text(header: RunStarted) -> str:
    """Return a run's problem as text."""
    return describe_config(header.arguments) or "no arguments"


def plain_problem(header: RunStarted) -> dict[str, Any]:
    """Return a run's problem as plain data: dtypes by name, and without dimensions that are symbolic."""
    found = {}
    for name, value in header.arguments.items():
        tag = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else ""
        if tag != "$dynamic":
            found[name] = value[tag] if tag.startswith("$") else value
    return found


def _results(part: Part) -> Iterator[Result]:
    if isinstance(part, Result):
        yield part
    elif (path := Path(part)).is_dir():
        yield from map(replay, journals_in(path))
    else:
        yield replay(path)


def _shown(source: object) -> str:
    return printable(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the list"
