"""Folders of journals: which there are, and the folder of a set, whose ``set.json`` lists its problems."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from atune.errors import JournalError, UsageError
from atune.journal.events import RunStarted
from atune.journal.reader import MAX_LINE_BYTES, JournalReader, replay, unfit
from atune.journal.result import Result
from atune.journal.state import State, header_in
from atune.journal.writer import Journal
from atune.model.candidate import Config, Problem, over_sizes
from atune.model.folders import cache_folder, make_private_folder, read_file, whole_file

INDEX = "set.json"
"""The file in a set's folder that lists its problems. The first one's journal is ``0000.jsonl``, and so on."""
LOCK = "set.lock"
"""The file there, an empty journal, that a run locks while it writes the set."""
NOT_BEGUN = "not begun"
FIRST = 3
"""Configurations of a problem's order on symbolic code that it tries with numbers. On an H100 the best of the first
three was within 0.5 % of the best on all of 56 problems, the first alone within 2.7 % (bench/results/symbolic_rank)."""
NEAR = 1.05
"""How many times slower than the first, on symbolic code, the third may be at most."""


class TunedProblem(msgspec.Struct, frozen=True, eq=False):
    """A problem and what became of it. `result` is None where it could not be tuned, and `error` then says why."""

    problem: Problem
    result: Result | None
    error: str = ""

    @property
    def won(self) -> bool:
        """Whether it has a winner."""
        return self.result is not None and self.result.best is not None

    @property
    def unfinished(self) -> bool:
        """Whether its run has yet to begin, or to end."""
        return self.error == NOT_BEGUN if self.result is None else not (self.result.finished or self.error)


def is_set(path: Path) -> bool:
    """Tell whether `path` is the folder of a set."""
    return (path / INDEX).is_file()


def listed(folder: Path) -> dict[Path, Problem]:
    """Return the problems of a set's folder by their journals, in order. Raises `UsageError` for another folder."""
    try:
        if why := unfit(data := read_file(folder / INDEX)):
            raise msgspec.DecodeError(why)
        found = msgspec.json.decode(data, type=list[Problem])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"it has no {INDEX}" if isinstance(error, FileNotFoundError) else str(error)
        raise UsageError(f"{folder} is no folder of a set's journals: {why}") from error
    return {folder / f"{number:04}.jsonl": problem for number, problem in enumerate(found)}


def rankings_in(folder: Path) -> list[tuple[Path, RunStarted]]:
    """Return the journals of a set's folder that rank for several problems, with headers; warn of damaged ones."""
    found = []
    for path in filter(is_begun, sorted(folder.glob("ranking-*.jsonl"))):
        try:
            found.append((path, header_in(State.of(JournalReader(path)))))
        except JournalError as error:
            warnings.warn(f"a ranking of the set is left out: {error}", RuntimeWarning, stacklevel=2)
    return found


def ranked_first(state: State) -> list[tuple[Config, ...]]:
    """Return the space's first configurations for each problem, in their order, in a run that ranks for several.

    Empty where too few were measured: then each problem is tuned as if it were alone.
    """
    found, n_sizes = list[tuple[Config, ...]](), 0 if state.header is None else len(over_sizes(state.header.arguments))
    ranked = [one for one in state.ranked() if len(one.sizes_ms) == n_sizes]  # all, unless a stranger wrote it
    measured = [one for one in ranked if state.entry(one.index).in_space]
    if state.header is None or len(measured) < min(FIRST, state.header.total):
        return found
    for place in range(n_sizes):
        ordered = sorted((one.sizes_ms[place], one.index) for one in measured)[:FIRST]
        near = [index for n, (ms, index) in enumerate(ordered) if n < 2 or ms < NEAR * ordered[0][0]]
        found.append(tuple(state.entry(index).config for index in near))
    return found


def run_header(path: Path) -> RunStarted | None:
    """Return the header of a journal that has begun."""
    first = next(iter(JournalReader(path)), None)
    return first if isinstance(first, RunStarted) else None


def header_of_set(folder: Path) -> RunStarted | None:
    """Return the header of the first run that has begun; the work and what was asked for are the same in all."""
    ranked = (header for _, header in rankings_in(folder))
    return next(ranked, None) or next((run_header(path) for path in journals_in(folder)), None)


def open_set_folder(folder: Path, problems: Sequence[Problem]) -> tuple[list[Path], Journal]:
    """Return the journal of each problem in a set's folder, which is made or gets the problems that it lacks.

    Where nothing has begun, it has those problems alone. A journal that a killed run left without a whole line is
    removed. Also returns what keeps other runs out of the folder, until it is closed.

    Raises `UsageError` if the folder is another thing, or cannot be written, and `JournalError` while another run
    writes it.
    """
    with ExitStack() as stack:
        try:
            if folder.absolute().is_relative_to(cache_folder()):
                make_private_folder(str(folder))
            folder.mkdir(exist_ok=True)  # outside of the cache no parents are made
            if not is_set(folder) and any(one.name != LOCK and one.name[0] != "." for one in folder.iterdir()):
                raise UsageError(f"journal {folder} is no set's folder, and is not empty: give a new folder")
            lock = stack.enter_context(Journal.create(folder / LOCK))
            before = listed(folder).values() if is_set(folder) else ()
            known = {one.key: one for one in (*(before if has_begun(folder) else ()), *problems)}
            every = [*known.values()]
            for one in every:
                if one.arguments.keys() != every[0].arguments.keys():
                    raise UsageError(f"journal {folder}: {one} and {every[0]} differ in the names of their arguments")
            _write(folder, every)
            journals = dict(zip(known, listed(folder), strict=True))
            for journal in journals.values():
                if not is_begun(journal):
                    journal.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"journal {folder}: the folder of a set's journals cannot be written: {error}") from error
        stack.pop_all()
        return [journals[one.key] for one in problems], lock


def forget_added(folder: Path, had: Sequence[Problem]) -> None:
    """Reduce a set's list to what it had, unless another problem has begun, or is ranked. A new set is removed."""
    ranked = [problem.items() for _, header in rankings_in(folder) for problem in over_sizes(header.arguments)]
    for journal, one in [*listed(folder).items()][len(had) :]:
        if is_begun(journal) or any(one.arguments.items() <= problem for problem in ranked):
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
    """Tell whether a problem's run has begun: its journal's first line is whole. Raises `OSError`."""
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        return file.readline(MAX_LINE_BYTES).endswith(b"\n")


def has_begun(folder: Path) -> bool:
    """Tell whether a run of a set's folder has begun, that of a problem or one that ranks for several."""
    return any(map(is_begun, folder.glob("*.jsonl")))


def journals_in(folder: Path) -> list[Path]:
    """Return the journals of a folder that have begun: of a set those of its problems, else its files by name."""
    paths = listed(folder) if is_set(folder) else sorted(folder.glob("*.jsonl"))
    return [path for path in paths if is_begun(path)]


def tuned_problems(folder: Path) -> list[TunedProblem]:
    """Return the problems of a set's folder with their results.

    Raises `UsageError` if it is no such folder, and `JournalError` for a journal that cannot be read.
    """
    return [
        TunedProblem(problem, replay(journal)) if is_begun(journal) else TunedProblem(problem, None, NOT_BEGUN)
        for journal, problem in listed(folder).items()
    ]
