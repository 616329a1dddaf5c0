"""The results that a set of journals holds: of files, folders, and lists of both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.replay import replay
from atune.journal.result import Result
from atune.journal.set_folder import journals_in
from atune.model.candidate import config_key, describe_config, printable

Source = Result | str | os.PathLike[str] | Iterable["Result | str | os.PathLike[str]"]
"""A result, a journal, a folder of journals, or several of these."""


def results_of(source: Source) -> list[Result]:
    """Return the results that `source` holds: of a folder those of `journals_in`.

    Raises `JournalError` for a journal that cannot be read, and `UsageError` where there is none.
    """
    found = list(_results(source))
    if not found:
        raise UsageError(f"{_shown(source)} has no journals: give a journal, a folder of *.jsonl, or a list of these")
    return found


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


def _results(source: Source) -> Iterator[Result]:
    if isinstance(source, Result):
        yield source
    elif not isinstance(source, (str, os.PathLike)):
        for each in source:
            yield from _results(each)
    elif (path := Path(source)).is_dir():
        yield from map(replay, journals_in(path))
    else:
        yield replay(path)


def _shown(source: object) -> str:
    return printable(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the list"
