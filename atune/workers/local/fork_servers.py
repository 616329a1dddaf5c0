"""The fork server of this program: a parked one, or a fresh one."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from atune.errors import AtuneError
from atune.model.folders import server_folder
from atune.workers.local.entry_points import PRELOAD
from atune.workers.processes.server import ForkServerProcess, in_worker, parked
from atune.workers.system.inherited_state import substitute, surroundings

SERVER_ENV = {
    "TILELANG_DISABLE_CACHE": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # tilelang's import asks torch whether CUDA is available. Asking the driver would start it in the server,
    # and then no fork of the server could use it. NVML answers without starting the driver.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
_HUGE_PAGES = "glibc.malloc.hugetlb"
"""glibc's tunable that makes malloc ask for transparent huge pages. Lowering makes many small allocations, and takes
6 to 15 % less time with them."""


def server_env() -> dict[str, str]:
    """Return the variables to add to the program's environment. The program's own choice of huge pages stays."""
    common = {**SERVER_ENV, **substitute()}
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES in tunables:
        return common
    return {**common, "GLIBC_TUNABLES": ":".join(filter(None, (tunables, f"{_HUGE_PAGES}=1")))}


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
