"""The fork server's process, which may be started early, and which stays warm for the next run.

The process belongs to no event loop. A run attaches to the process. Unless the run is cancelled, it then parks the
process for the next run, which may use another loop or thread.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from atune.errors import AtuneError, WorkloadError
from atune.model.folders import CACHE_VARIABLE, SERVER_FOLDER, TILELANG_FOLDER, server_folder, sys_path, working_folder
from atune.workers import server_main
from atune.workers.resources import usable_cores

PRELOAD = ("torch", "tilelang", "atune.stages.entry_points")
"""Modules that the fork server imports once for all workers."""
SERVICE_ARCH = "ATUNE_SERVICE_ARCH"
"""Environment variable of the compile service's fork server: the architecture for which it parses headers."""
DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""Device files of CUDA's driver. If the driver is installed, at least one of them exists."""

SERVER_ENV = {
    "TILELANG_DISABLE_CACHE": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # tilelang's import asks torch whether CUDA is available. If torch asked the driver, the driver would start in the
    # server, and no fork of the server could use it. NVML answers without starting the driver.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
DEFAULT_ENV = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Default environment variables. Huge pages make lowering 6 to 15 % faster, because lowering allocates many small
objects."""

WARM_VARIABLE = "ATUNE_WARM"
"""Environment variable. If the variable is ``off``, processes start only when a run or a call of `warm` needs them."""
SERVER_REAP_S = 0.5


def in_worker() -> bool:
    """Tell whether this process is a worker of a run."""
    return os.environ.get(server_main.WORKER) == str(os.getpid())


def refuse_in_worker() -> None:
    """In a worker, raise `WorkloadError`, because a file that tunes while it is loaded would load itself forever."""
    if not in_worker():
        return
    stack = traceback.extract_stack(sys._current_frames().get(threading.main_thread().ident or 0))
    ours = os.path.dirname(server_main.__file__)
    files = [frame for frame in stack if frame.name == "<module>" and os.path.dirname(frame.filename) != ours]
    if not files:
        raise WorkloadError("a function of the workload tunes in a worker of a run: move the call out of the workload")
    raise WorkloadError(
        f"{files[-1].filename}, line {files[-1].lineno}, tunes while a worker loads the file, and would tune again in "
        'each worker: put the call below `if __name__ == "__main__":`'
    )


class ForkServerProcess:
    """A fork server: its process, the control socket, and the lifeline, whose write end only this program holds.

    Starting the process takes milliseconds. Then the server imports `preload` on its own. The server's log and its
    workers' stderr go to `folder`. `remove_folder` is called after the process has ended. `env` is added to the
    process's environment. `facts` holds answers that runs keep for later runs. Raises `WorkloadError` in a worker.
    """

    def __init__(
        self,
        preload: Sequence[str],
        folder: Path,
        remove_folder: Callable[[], None] = lambda: None,
        *,
        env: Mapping[str, str],
    ) -> None:
        refuse_in_worker()
        folder.mkdir(parents=True, exist_ok=True)
        self._remove_folder = remove_folder
        self.folder, self.imports = folder, ", ".join(preload) or "nothing"
        self.log = folder / "fork-server.log"
        self.numbers = count()
        self.preload_s: float | None = None
        self.facts: dict[Any, Any] = {}
        self.surroundings = surroundings()
        with ExitStack() as stack:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.control.setblocking(False)
            stack.callback(theirs.close)
            lifeline, self.lifeline = os.pipe()
            stack.callback(os.close, lifeline)
            try:
                self._process = self._launched(theirs.fileno(), lifeline, preload, env)
            except BaseException:
                self.control.close()
                os.close(self.lifeline)
                raise
        self.pid = self._process.pid

    def _launched(
        self, control: int, lifeline: int, preload: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Launch the server, which inherits the descriptors `control` and `lifeline`."""
        there = working_folder()
        given = {
            "control": control,
            "lifeline": lifeline,
            "folder": there,
            "preload": list(preload),
            "path": [os.path.abspath(entry) for entry in sys_path() if there or os.path.isabs(entry)],
            "parent": os.getpid(),
        }
        folders = {SERVER_FOLDER: str(self.folder), TILELANG_FOLDER: str(self.folder / "tilelang")}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", server_main.__file__, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**DEFAULT_ENV, **os.environ, **env, **folders},
                cwd="/",  # always exists; libraries that torch loads end a process without a working folder
                pass_fds=(control, lifeline),
            )

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int | None:
        while self.returncode is None:
            try:
                pidfd = os.pidfd_open(self.pid)
            except ProcessLookupError:
                continue
            try:
                await anyio.wait_readable(pidfd)
            finally:
                anyio.notify_closing(pidfd)
                os.close(pidfd)
        return self.returncode

    def hang_up(self) -> None:
        """Close the lifeline, so that the kernel SIGKILLs the server and every worker. Then SIGKILL the server, too."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        for kill in (os.killpg, os.kill):  # the server may not have made its group yet
            with suppress(ProcessLookupError):
                if self.returncode is None:
                    kill(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """After `hang_up`, wait until the process has ended. Blocks for milliseconds, and for half a second at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SERVER_REAP_S)
        self._remove_folder()

    def destroy(self) -> None:
        """End a server to which no run is attached. Blocks for half a second at most."""
        self.hang_up()
        self.reap()
        self.control.close()

    def forget(self) -> None:
        """In a forked child, release the parent's resources, so that the child does not keep the server alive."""
        os.close(self.lifeline)
        self.lifeline = -1
        self.control.close()
        self._process.returncode = 0  # this process cannot wait for it, because it is not the server's parent


_NOT_INHERITED = {
    "TVM_LIBRARY_PATH", "TL_CUTLASS_PATH", "TL_TEMPLATE_PATH",  # tilelang's import sets them, and reads them once
    TILELANG_FOLDER, CACHE_VARIABLE, "TILELANG_DISABLE_CACHE",  # workers get these from their run
    "PYTHONPATH",  # the server gets `sys.path` instead
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",  # set by packages that the program imports, such as scikit-learn
}  # fmt: skip


def surroundings() -> tuple[object, ...]:
    """Return the settings that a new process would inherit: environment, working folder, limits, niceness and cores.

    Processes with equal settings are interchangeable. Variables that the import of tilelang sets are left out, so that
    a process that was started before the import can be used after the import.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    limits = [resource.getrlimit(value) for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
    return environment, working_folder(), limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)


class Parked:
    """A place for an idle fork server of the program, which the next run takes."""

    def __init__(self) -> None:
        self.server: ForkServerProcess | None = None
        self._lock = threading.Lock()

    def take(self) -> ForkServerProcess | None:
        """Return the parked server if it is alive and its `surroundings` are current. Otherwise end the server."""
        with self._lock:
            server, self.server = self.server, None
        if server is None:
            return None
        if server.returncode is None and server.folder.is_dir() and server.surroundings == surroundings():
            return server
        server.destroy()
        return None

    def park(self, server: ForkServerProcess | None) -> None:
        """Keep `server` for the next run, and end the server that was parked before. None: only end that server."""
        with self._lock:
            before, self.server = self.server, server
        if before is not None:
            before.destroy()

    def forget(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self.server is not None:
            self.server.forget()
            self.server = None


parked, parked_service = Parked(), Parked()
for _place in (parked, parked_service):
    atexit.register(_place.park, None)
    os.register_at_fork(after_in_child=_place.forget)


def started(preload: Sequence[str] | None = None, **env: str) -> ForkServerProcess:
    """Start a fork server, and return while it is still importing `preload`, or `PRELOAD` by default."""
    return ForkServerProcess(PRELOAD if preload is None else preload, *server_folder(), env={**SERVER_ENV, **env})


def warm_service(arch: str = "") -> None:
    """Park a fork server for the compile service, unless one is parked.

    The server parses headers for `arch`, or else for this machine's GPU. Raises `OSError` if no process can be started.
    """
    early = ("atune.stages.cicc_early",)
    parked_service.park(parked_service.take() or started(early, **{SERVICE_ARCH: arch}))


def taken() -> ForkServerProcess:
    """Return the parked fork server, or start one."""
    return parked.take() or started()


def warm() -> None:
    """Start the processes that the next tuning needs, in the background, and return immediately.

    While the program continues, these processes import torch and tilelang, parse CUDA's headers, and then wait. A
    tuning uses the processes if the environment, the working folder, limits, niceness and cores have not changed.
    Otherwise, the tuning ends the processes and starts new processes. The processes end at `shutdown` or with the
    program, however the program ends. A second call, or a call in a worker, does nothing.

    Raises `UsageError` if ``$TMPDIR`` cannot be used, and `OSError` if no process can be started.
    """
    if in_worker():
        return
    parked.park(taken())
    if any(map(os.path.exists, DRIVER)) and len(usable_cores()) > 2:  # two import tilelang: program and fork server
        warm_service()


@functools.cache
def warm_early() -> None:
    """Call `warm` once in a program that will probably tune. Ignore failures.

    In a child of `multiprocessing`, do nothing, because the child runs the program's file only to load its functions.
    """
    process = sys.modules.get("multiprocessing.process")
    if os.environ.get(WARM_VARIABLE) != "off" and (process is None or process.parent_process() is None):
        with suppress(AtuneError, OSError):
            warm()


def shutdown() -> None:
    """End the idle processes that `tune` and `run` keep warm for the next call. The next call starts new processes.

    Without `shutdown`, the idle processes end when the program ends. Blocks for half a second at most.
    """
    parked.park(None)
    parked_service.park(None)
