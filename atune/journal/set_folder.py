"""Folders of journals. The folder of a set also contains a file ``set.json``, which lists the problems of the set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.reader import MAX_LINE_BYTES, JournalReader, replay, unfit
from atune.journal.result import Result
from atune.journal.writer import Journal
from atune.model.candidate import Problem
from atune.model.folders import cache_folder, make_private_folder, read_file, whole_file

INDEX = "set.json"
"""The file in a set's folder that lists the problems. The journal of the first problem is ``0000.jsonl``, and so on."""
LOCK = "set.lock"
"""The name of an empty file in a set's folder. While a run writes the set, the run holds a lock on this file."""
NOT_BEGUN = "not begun"


class TunedProblem(msgspec.Struct, frozen=True, eq=False):
    """A problem of a set, with its result. If the problem could not be tuned, `result` is None and `error` says why."""

    problem: Problem
    result: Result | None
    error: str = ""

    @property
    def won(self) -> bool:
        """Whether the problem has a winner."""
        return self.result is not None and self.result.best is not None

    @property
    def unfinished(self) -> bool:
        """Whether the problem's run has not begun yet, or has not ended."""
        return self.error == NOT_BEGUN if self.result is None else not (self.result.finished or self.error)


def is_set(path: Path) -> bool:
    """Tell whether `path` is the folder of a set."""
    return (path / INDEX).is_file()


def listed(folder: Path) -> dict[Path, Problem]:
    """Return the problem of each journal in a set's folder, in order. Raises `UsageError` for any other folder."""
    try:
        if why := unfit(data := read_file(folder / INDEX)):
            raise msgspec.DecodeError(why)
        problems = msgspec.json.decode(data, type=list[Problem])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"it has no {INDEX}" if isinstance(error, FileNotFoundError) else str(error)
        raise UsageError(f"{folder} is not the folder of a set: {why}") from error
    return {folder / f"{number:04}.jsonl": problem for number, problem in enumerate(problems)}


def header_of_set(folder: Path) -> RunStarted | None:
    """Return the header of the first run that has begun. All runs of a set have the same workload and settings."""
    first = next((next(iter(JournalReader(path)), None) for path in journals_in(folder)), None)
    return first if isinstance(first, RunStarted) else None


def open_set_folder(folder: Path, problems: Sequence[Problem]) -> tuple[list[Path], Journal]:
    """Create a set's folder, or add `problems` to a set. Return the journals of `problems`, and the folder's lock.

    If no run of the set has begun, `problems` replace the listed problems. A journal without a complete line, which a
    killed run left, is removed. Until the returned lock is closed, no other run can write into the folder.

    Raises `UsageError` if `folder` cannot be written, or is not empty and not a set's folder. Raises `JournalError` if
    another run is writing into the folder.
    """
    with ExitStack() as stack:
        try:
            if folder.absolute().is_relative_to(cache_folder()):
                make_private_folder(str(folder))
            folder.mkdir(exist_ok=True)  # outside the cache folder, the parents must exist
            if not is_set(folder) and any(file.name != LOCK and file.name[0] != "." for file in folder.iterdir()):
                raise UsageError(f"journal {folder} is not the folder of a set, and is not empty: give a new folder")
            lock = stack.enter_context(Journal.create(folder / LOCK))
            before = listed(folder).values() if is_set(folder) and journals_in(folder) else ()
            by_key = {problem.key: problem for problem in (*before, *problems)}
            every = [*by_key.values()]
            for problem in every:
                if problem.arguments.keys() != every[0].arguments.keys():
                    raise UsageError(f"journal {folder}: {problem} and {every[0]} have different names of arguments")
            _write(folder, every)
            journals = dict(zip(by_key, listed(folder), strict=True))
            for journal in journals.values():
                if not is_begun(journal):
                    journal.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"journal {folder}: the folder cannot be written: {error}") from error
        stack.pop_all()
        return [journals[problem.key] for problem in problems], lock


def forget_added(folder: Path, had: Sequence[Problem]) -> None:
    """Remove all problems but `had` from a set's list, unless a run of another problem has begun. If `had` is empty,
    remove the set."""
    if any(map(is_begun, [*listed(folder)][len(had) :])):
        return
    if had:
        _write(folder, had)
        return
    (folder / INDEX).unlink()
    folder.rmdir()


def _write(folder: Path, problems: Sequence[Problem]) -> None:
    with whole_file(folder / INDEX) as part:
        Path(part).write_bytes(msgspec.json.format(msgspec.json.encode(problems)) + b"\n")


def is_begun(journal: Path) -> bool:
    """Tell whether a run has begun. If it has, its journal has a complete first line. Raises `OSError`."""
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        return file.readline(MAX_LINE_BYTES).endswith(b"\n")


def journals_in(folder: Path) -> list[Path]:
    """Return the journals in a folder whose runs have begun, sorted by name, or in the order of a set's problems."""
    paths = listed(folder) if is_set(folder) else sorted(folder.glob("*.jsonl"))
    return [path for path in paths if is_begun(path)]


def tuned_problems(folder: Path) -> list[TunedProblem]:
    """Return the problems of a set's folder with their results. Raises `UsageError` if `folder` is not a set's folder,
    and `JournalError` for a journal that cannot be read."""
    return [
        TunedProblem(problem, replay(journal)) if is_begun(journal) else TunedProblem(problem, None, NOT_BEGUN)
        for journal, problem in listed(folder).items()
    ]
