"""The fork server of this program: a parked one, or a fresh one."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from atune.errors import AtuneError
from atune.local.entry_points import PRELOAD
from atune.local.server_env import server_env
from atune.processes.server import ForkServerProcess, in_worker, parked
from atune.system.folders import server_folder
from atune.system.surroundings import surroundings

VARIABLE = "ATUNE_WARM"
"""Environment variable. ``off``: start no process before a run or a call of `warm` needs it."""

_started_early = False


def started() -> ForkServerProcess:
    """Start a fork server, and return while it still imports."""
    return ForkServerProcess(PRELOAD, *server_folder(), env=server_env())


def taken() -> tuple[ForkServerProcess, Callable[[ForkServerProcess], None]]:
    """Return the parked fork server, or a fresh one, and the function that parks it for the next run.

    A parked one from other surroundings is ended.
    """
    kind = _kind()
    return parked.take(kind) or started(), functools.partial(parked.park, kind)


def warm() -> None:
    """Start the processes that the next tuning needs, in the background, and return at once.

    They import torch and tilelang while the program continues, and then wait. A tuning takes them over if its
    environment, working folder, umask, limits, niceness and cores are the same. Otherwise it ends them and starts its
    own. They end with the program, however it ends, or at `shutdown`. This does nothing if they already wait, or in a
    worker.

    Raises `UsageError` if ``$TMPDIR`` cannot be used, and OSError if no process can be started.
    """
    if not in_worker():
        server, park = taken()
        park(server)


def warm_early() -> None:
    """Do what `warm` does, once per program, on a sign that it will tune. Failures are silent.

    Does nothing in a child of `multiprocessing`, which runs the program's file only to load its functions.
    """
    global _started_early
    if _started_early or os.environ.get(VARIABLE) == "off" or _is_child():
        return
    _started_early = True
    with suppress(AtuneError, OSError):
        warm()


def _is_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _kind() -> tuple[object, ...]:
    return PRELOAD, *surroundings()
