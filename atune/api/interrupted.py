"""A program that Ctrl-C ends while it tunes: its measurements are kept in a journal, and one line names it."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from atune.journal.spare import SpareJournal
from atune.journal.state import State
from atune.system.paths import cache_folder

SOON_S = 10.0
"""Seconds after a run was cancelled within which a KeyboardInterrupt that nobody catches is taken for its reason."""
BEGINNING = "tuning interrupted; "
"""Of the line."""
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class _Last:
    """The run of this program that was cancelled last."""

    lock = threading.Lock()
    state: State | None = None
    journal: str | None = None
    spare: SpareJournal | None = None
    at: float = 0.0
    hook: Hook | None = None
    """What showed exceptions before."""


_last = _Last()


def spare_journal() -> SpareJournal | None:
    """Return a journal for a run that was given none; None where the cache folder cannot be written."""
    return SpareJournal.opened(journals_folder())


def journals_folder() -> Path:
    """Return the folder of the journals that were given no path."""
    return cache_folder() / "journals"


def remember(state: State, journal: str | None, spare: SpareJournal | None) -> None:
    """Note that a run was cancelled: perhaps by Ctrl-C. Its spare journal is kept only if that turns out."""
    with _last.lock:
        if _last.spare is not None:
            _last.spare.close()
        _last.state, _last.journal, _last.spare, _last.at = state, journal, spare, time.monotonic()
        if _last.hook is None:
            _last.hook, sys.excepthook = sys.excepthook, _shown_in_a_line


def told() -> str:
    """Return the line on the run that was cancelled last, whose spare journal is kept now; empty where none was."""
    with _last.lock:
        state, journal, spare = _last.state, _last.journal, _last.spare
        _last.state = _last.journal = _last.spare = None
    if state is None or time.monotonic() - _last.at > SOON_S:
        if spare is not None:
            spare.close()
        return ""
    measured = state.counts["measured"]
    if spare is not None and measured:
        kept = spare.keep(_name(state))
        journal = None if kept is None else str(kept)
    elif spare is not None:
        spare.close()
    if journal is None:
        return f"{BEGINNING}{measured} measured, and no journal kept"
    shown = shlex.quote(journal)
    return f"{BEGINNING}{measured} measured are kept in {shown}: journal={journal!r} goes on, atune replay shows them"


def _name(state: State) -> str:
    workload = "" if state.header is None else state.header.workload
    moment = time.strftime("%Y%m%d-%H%M%S")
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', workload)[:80]}-{moment}-{os.getpid()}.jsonl"


def _shown_in_a_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an exception that nobody caught: a KeyboardInterrupt that ended a run in one line, others as before."""
    if issubclass(kind, KeyboardInterrupt):
        line = str(error) if str(error).startswith(BEGINNING) else told()
        if line and sys.stderr is not None:
            print(f"atune: {line}", file=sys.stderr)
            return
    (_last.hook or sys.__excepthook__)(kind, error, trace)
