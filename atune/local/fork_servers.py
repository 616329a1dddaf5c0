"""The fork server of this program: the one that waits, or another; and started ahead of the run that needs it."""

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
"""Environment variable: ``off`` has nothing started before a run, or `warm`, asks for it."""

_started_early = False


def started() -> ForkServerProcess:
    """Start a fork server; it imports by itself."""
    return ForkServerProcess(PRELOAD, *server_folder(), env=server_env())


def taken() -> tuple[ForkServerProcess, Callable[[ForkServerProcess], None]]:
    """Return the fork server that waits, else a new one, and what leaves it to the next run.

    One that waits and was started in other surroundings is ended.
    """
    kind = _kind()
    return parked.take(kind) or started(), functools.partial(parked.park, kind)


def warm() -> None:
    """Start the processes that the next tuning needs, in the background, and return at once.

    They import torch and tilelang while the program goes on, and then wait. A tuning takes them over where they fit:
    same environment, working folder, umask, limits, niceness and cores; otherwise it ends them and starts its own. They
    end with the program, however it ends, or at `shutdown`. Once they wait, or in a worker, this does nothing.

    Raises `UsageError` where ``$TMPDIR`` cannot be used, and OSError where no process can be started.
    """
    if in_worker():
        return
    server, park = taken()
    park(server)


def warm_early() -> None:
    """Do as `warm`, once a program, on a sign that it will tune; in silence where that cannot be.

    Not in a child that `multiprocessing` has made: it has run the program's file only to have its functions.
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
