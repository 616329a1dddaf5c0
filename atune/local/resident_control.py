"""Start, status and stop of the resident server. Blocking, for the command line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from atune.errors import UsageError, WorkerError
from atune.local.entry_points import PRELOAD
from atune.local.server_env import server_env
from atune.processes import resident_main
from atune.processes.resident_client import ANSWER_S, NoSession, ask, wanted
from atune.processes.resident_place import STATUS, STOP, Place
from atune.processes.server import refuse_in_worker, search_path
from atune.processes.worker import read_tail
from atune.system.folders import SERVER_FOLDER, private_root

START_S = 300.0
"""For importing the preload. A slow machine needs far less."""
STOP_S = 5.0


def status(within_s: float = ANSWER_S) -> dict[str, Any] | None:
    """Return the resident server's facts, and as ``misfit`` the reason why this program would not use it.

    If the server does not answer, return only its ``pid`` and ``misfit``. Return None without a server.
    """
    place = Place()
    try:
        return ask(place, STATUS, wanted(PRELOAD, _env()), within_s)
    except NoSession as error:
        pid = place.holder()
        return {"pid": pid, "misfit": f"{error}; it still imports or hangs"} if pid else None


def start(idle_s: float) -> dict[str, Any]:
    """Start a resident server that ends after `idle_s` without a run. Return its ``pid`` and ``seconds`` of imports.

    If another one is starting, wait for it. Raises `WorkerError` if importing fails.
    """
    refuse_in_worker()
    place = Place()
    place.make()
    deadline = time.monotonic() + START_S
    while True:
        said = _started(place, idle_s)
        if "pid" in said:
            return said
        if "error" in said:
            raise WorkerError(f"the resident server did not start: {said['error']}", read_tail(place.log))
        while (other := status()) is not None:  # another program started it in between
            if "up_s" in other:
                return {"pid": other["pid"], "seconds": 0.0}
            if time.monotonic() > deadline:
                raise WorkerError(f"a resident server, process {other['pid']}, hangs; atune server stop ends it")
            time.sleep(0.1)


def stop() -> int | None:
    """Stop the resident server and wait for its end. Return its pid, or None without a server.

    Kill a server that does not answer.
    """
    place = Place()
    pid = place.holder()
    if not pid:
        return None
    try:
        ask(place, STOP, within_s=ANSWER_S)
    except NoSession:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + STOP_S
    while place.holder() == pid and time.monotonic() < deadline:
        time.sleep(0.01)
    with suppress(ChildProcessError):  # it is a child only of the program that started it
        while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < deadline:
            time.sleep(0.01)
    return pid


def _started(place: Place, idle_s: float) -> dict[str, Any]:
    """Start the server's program. Return its report on the start."""
    heard, ready = os.pipe()
    config = {
        "socket": str(place.socket),
        "lock": str(place.lock),
        "ready": ready,
        "idle_s": idle_s,
        "preload": list(PRELOAD),
        "path": search_path(),
    }
    log = _log(place.log)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", resident_main.__file__, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_env(),
            cwd="/",
            pass_fds=(ready,),
            start_new_session=True,
        )
    finally:
        os.close(ready)
        os.close(log)
    try:
        return _said(heard, process, place)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(heard)


def _said(heard: int, process: subprocess.Popen[bytes], place: Place) -> dict[str, Any]:
    """Wait for the server's report. Raises `WorkerError` if the server ends without one or takes too long."""
    text = b""
    deadline = time.monotonic() + START_S
    while select.select([heard], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(heard, 1 << 16)
        if not part:
            break
        text += part
    if not text:
        raise WorkerError(f"the resident server (process {process.pid}) ended as it started", read_tail(place.log))
    said: dict[str, Any] = json.loads(text)
    if "pid" not in said:
        process.wait()
    process.returncode = 0  # it outlives this program
    return said


def _log(path: Path) -> int:
    """Open a new log for the server. Raises `UsageError`."""
    while True:
        try:
            path.unlink(missing_ok=True)  # another server may still write to it
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # another start opened one in between
            continue
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _env() -> dict[str, str]:
    """Return the server's environment. The folder's name lets runs recognise their own processes on a GPU."""
    return {**os.environ, **server_env(), SERVER_FOLDER: str(private_root() / "server-resident")}
