"""The fork server of this program: a parked one, a session of the resident server, or a fresh one."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from atune.errors import AtuneError
from atune.local.entry_points import PRELOAD
from atune.local.server_env import server_env
from atune.processes.resident_client import NoSession, asked
from atune.processes.resident_place import found
from atune.processes.server import ForkServerProcess, in_worker, parked
from atune.system.folders import server_folder
from atune.system.surroundings import surroundings

VARIABLE = "ATUNE_WARM"
"""Environment variable. ``off``: start no process before a run or a call of `warm` needs it."""

_started_early = False


def started() -> ForkServerProcess:
    """Start a fork server, and return while it still imports."""
    return ForkServerProcess(PRELOAD, *server_folder(), env=server_env())


async def taken() -> tuple[ForkServerProcess, Callable[[ForkServerProcess], None]]:
    """Return a fork server, and the function that parks it for the next run.

    It is the parked one, otherwise a session of a resident server that fits, otherwise a fresh one; its `kind` says
    which. A parked one from other surroundings is ended. If this is cancelled, no process is left behind.
    """
    kind = _kind()
    process = parked.take(kind) or _another()
    try:
        await process.answered()
    except NoSession as error:
        process = _fresh(error)
    return process, functools.partial(parked.park, kind)


def _another() -> ForkServerProcess:
    """Return a session that has not answered yet, or a fresh server."""
    if (place := found()) is None:
        return started()
    try:
        return asked(place, PRELOAD, *server_folder(), env=server_env())
    except NoSession as error:
        return _fresh(error)


def _fresh(error: NoSession) -> ForkServerProcess:
    process = started()
    process.kind = f"a fresh one, because the resident server cannot be used: {error}"
    return process


def warm() -> None:
    """Start the processes that the next tuning needs, in the background, and return at once.

    They import torch and tilelang while the program continues, and then wait. Where a resident server fits, it forks
    them, and they import nothing. A tuning takes them over if its environment, working folder, umask, limits, niceness
    and cores are the same. Otherwise it ends them and starts its own. They end with the program, however it ends, or at
    `shutdown`. This does nothing if they already wait, or in a worker.

    Raises `UsageError` if ``$TMPDIR`` cannot be used, and OSError if no process can be started.
    """
    _ask()
    _settle()


def warm_early(*, settle: bool = True) -> None:
    """Do what `warm` does, once per program, on a sign that it will tune. Failures are silent.

    Does nothing in a child of `multiprocessing`, which runs the program's file only to load its functions. Without
    `settle` it does not wait for a resident server's answer: call `settle_early` soon.
    """
    global _started_early
    if _started_early or os.environ.get(VARIABLE) == "off" or _is_child():
        return
    _started_early = True
    with suppress(AtuneError, OSError):
        _ask()
        if settle:
            _settle()


def settle_early() -> None:
    """Wait for the answer to what `warm_early` asked. Where it is a refusal, start a fresh server. Failures are
    silent."""
    if _started_early:
        with suppress(AtuneError, OSError):
            _settle()


def _ask() -> None:
    """Park a fork server that may not have answered yet, unless one is parked already."""
    if not in_worker():
        kind = _kind()
        parked.park(kind, parked.take(kind) or _another())


def _settle() -> None:
    """Wait for the answer of the parked server, if there is one. A fresh one replaces it if the answer is a refusal."""
    kind = _kind()
    if (process := parked.take(kind)) is None:
        return
    try:
        process.hear()
    except NoSession as error:
        process = _fresh(error)
    parked.park(kind, process)


def _is_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _kind() -> tuple[object, ...]:
    return PRELOAD, *surroundings()
