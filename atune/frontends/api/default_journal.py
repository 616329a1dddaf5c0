"""The journals of runs that were given none: files and sets' folders in the cache folder; the newest are kept."""

from __future__ import annotations

import fcntl
import re
import shlex
import time
from contextlib import suppress
from pathlib import Path

from atune.errors import JournalError
from atune.journal.set_folder import delete_set, is_set, written_at
from atune.journal.state import State
from atune.journal.writer import Journal
from atune.model.folders import cache_folder

RUNNING = "running"
"""Folder in the result cache: journals of calls that tune now, or were interrupted; the same call takes them up."""
KEPT = 200
"""Runs whose journals stay; a set is one run. Older ones are deleted when a run starts, unless a run writes them."""


def default_journal(name: str) -> Path:
    """Return the path for a new journal of a workload called `name`, and delete the oldest of many journals."""
    with suppress(OSError):
        _delete_oldest()
    moment = time.strftime("%Y%m%d-%H%M%S") + f".{time.time_ns() // 1000 % 1_000_000:06}"
    return journals_folder() / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:80]}-{moment}.jsonl"


def journals_folder() -> Path:
    """Return the folder of journals whose path nobody gave. Creates nothing."""
    return cache_folder() / "journals"


def kept_journals() -> list[Path]:
    """Return the journals and the sets' folders of that folder, the one that was written last first."""
    found: dict[Path, float] = {}
    for path in journals_folder().glob("*"):
        with suppress(OSError):  # another run deletes the oldest
            if path.suffix == ".jsonl":
                found[path] = path.stat().st_mtime
            elif is_set(path):
                found[path] = written_at(path)
    return sorted(found, key=lambda path: (found[path], path.name), reverse=True)


def opened_journal(name: str) -> Journal | None:
    """Return a new journal at `default_journal`; None where the cache folder cannot be written."""
    with suppress(JournalError):
        return Journal.create(default_journal(name))
    return None


def kept_line(state: State, journal: str | None, *, taken_up: bool = False) -> str:
    """Return one line on a run that was interrupted: what it measured, and the journal that has it.

    `taken_up`: whether the next call of a kernel takes up that journal by itself.
    """
    measured = state.counts["measured"]
    if journal is None:
        return f"tuning interrupted; {measured} measured, and no journal kept"
    then = "the next call continues" if taken_up else "journal= takes it to continue, atune replay to show it"
    return f"tuning interrupted; {measured} measured are kept in {shlex.quote(journal)}; {then}"


def _delete_oldest() -> None:
    for path in kept_journals()[KEPT - 1 :]:
        if path.is_dir():
            delete_set(path)
            continue
        with path.open("rb") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
