"""Finds a resident server, and asks it for a session as a run's fork server, a service, its status, or to stop.

It sends nothing but JSON, and reads nothing before the kernel has named the user at the other end.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from atune.errors import AtuneError, WorkerError
from atune.processes.fit import facts, surroundings
from atune.processes.resident_place import MESSAGE_BYTES, SERVICE, SESSION, Place, found, peer
from atune.processes.server import ForkServerProcess, Order, search_path
from atune.system.folders import short_path
from atune.system.paths import working_folder

RESIDENT = "resident"
ANSWER_S = 1.0
"""Seconds that a resident server may take to fork a session; a fresh fork server takes longer."""
STATUS_S = 0.05
"""Seconds to wait for a session's exit status. Without it the session counts as killed, which most are."""


_PASSING = re.compile(
    r"PWD|OLDPWD|_|SHLVL|TERM|TERM_\w+|COLORTERM|COLUMNS|LINES|WINDOWID|DISPLAY|WAYLAND_DISPLAY|SSH_\w+|TMUX\w*|STY"
    r"|XDG_SESSION_\w+|VSCODE_\w+|PYTEST_CURRENT_TEST|ATUNE_\w+"
)
"""Variables of a terminal, and atune's own: no compiler depends on them, and services do not get them."""


class NoSession(AtuneError):
    """A resident server gives no session or service: it does not fit, or does not answer. The fallback is a process of
    this program."""


def ask(place: Place, what: bytes, request: Mapping[str, Any] | None = None, within_s: float = 5.0) -> dict[str, Any]:
    """Ask for an answer without descriptors, blocking. Raises `NoSession` if no answer comes in time."""
    with _connected(place) as sock:
        _send(sock, what, request or {}, [])
        if not select.select([sock], [], [], within_s)[0]:
            raise NoSession(f"it does not answer within {within_s:g} s")
        return _received(sock)[0]


def wanted(preload: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties that a server must have to fit this program. `env`: the environment of a fork server of the
    program's own."""
    return {"preload": list(preload), "facts": facts(env), "path": search_path()}


def asked(
    place: Place,
    preload: Sequence[str],
    folder: Path,
    remove_folder: Callable[[], None],
    *,
    env: Mapping[str, str],
) -> ForkServerProcess:
    """Ask the resident server at `place` for a session, and return it, with a fork server's interface.

    It may not have started yet: its `answered` waits for that. Raises `NoSession` if the server cannot be asked.
    """
    try:
        process = ForkServerProcess(preload, folder, remove_folder, env=env, launch=partial(ResidentSession, place))
    except BaseException:
        remove_folder()
        raise
    process.kind = RESIDENT
    return process


class ResidentSession:
    """A fork server that is not a child of this program, with the methods of `subprocess.Popen` that are used."""

    def __init__(self, place: Place, order: Order) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._pidfd = -1
        self._sock = _connected(place)
        own = os.pidfd_open(os.getpid())
        request = {
            **wanted(order.preload, order.env),
            "program": surroundings(order.env),
            "folder": order.folder,
            "arguments": order.arguments,
        }
        try:
            _send(self._sock, SESSION, request, [order.control, order.lifeline, own, order.log])
        except BaseException:
            self._sock.close()
            raise
        finally:
            os.close(own)

    async def answered(self) -> None:
        if not self.pid:
            await _readable(self._sock)
            self.hear(0)

    def hear(self, within_s: float | None = None) -> None:
        """Do what `answered` does, blocking."""
        if not self.pid:
            answer, [self._pidfd] = _answer(self._sock, ANSWER_S if within_s is None else within_s)
            self.pid = answer["pid"]

    def poll(self) -> int | None:
        if self.pid and self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            self.returncode = self._status()
            self.forget()
        return self.returncode

    def wait(self, timeout: float) -> int:
        if not self.pid:  # nobody waits for the answer any more
            self.forget()
        elif self.returncode is None and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("session", timeout)
        code = self.poll()
        assert code is not None, "it has ended"
        return code

    def open_pidfd(self) -> int:
        return os.dup(self._pidfd)

    def forget(self) -> None:
        self.returncode = 0 if self.returncode is None else self.returncode
        self._sock.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _status(self) -> int:
        """Return the exit status of the process, from the resident server."""
        if self._pidfd >= 0 and select.select([self._sock], [], [], STATUS_S)[0]:
            with suppress(OSError, NoSession):
                return int(_received(self._sock)[0]["ended"])
        return -signal.SIGKILL


class SharedWorker:
    """A service of the resident server, which programs share. It is called as a worker is."""

    def __init__(self, sock: socket.socket) -> None:
        self.pid = 0
        self.alive = True
        self._sock = sock

    async def call(self, entry: str, payload: bytes, timeout_s: float) -> bytes:
        """Have the service carry out `entry`. Raises `WorkerError` if it ends or takes longer."""
        with anyio.move_on_after(timeout_s), suppress(NoSession):
            _send_file(self._sock, entry.encode(), payload, [])
            if reply := await self._received():
                return reply
        self.alive = False
        raise await self.ended()

    async def ended(self) -> WorkerError:
        """Wait for the service to hang up, and return the error that says so."""
        while self.alive:
            self.alive = bool(await self._received())
        return WorkerError(f"the resident server's service, process {self.pid}, does not answer any more")

    async def _received(self) -> bytes:
        await anyio.wait_readable(self._sock)
        try:
            return self._sock.recv(MESSAGE_BYTES)
        except OSError:
            return b""


@asynccontextmanager
async def service(
    preload: Sequence[str], entry: str, *, env: Mapping[str, str], nice: int
) -> AsyncGenerator[SharedWorker, None]:
    """Connect to the resident server's service that runs `entry` in this program's surroundings.

    `preload`, `env`: as for a fork server. `nice`: added to this program's niceness. Raises `NoSession` if the server
    does not fit, or does not answer in time.
    """
    if (place := found()) is None:
        raise NoSession("it has ended")
    program = surroundings({name: value for name, value in env.items() if not _PASSING.fullmatch(name)})
    program["nice"] = min(19, program["nice"] + nice)
    request = {**wanted(preload, env), "entry": entry, "program": program, "folder": _folder(env)}
    sock = _connected(place)
    own = os.pidfd_open(os.getpid())
    try:
        _send(sock, SERVICE, request, [own])
        worker = SharedWorker(sock)
        await _readable(sock)
        worker.pid = _answer(sock, 0)[0]["pid"]
        yield worker
    finally:
        os.close(own)
        anyio.notify_closing(sock)
        sock.close()


def _folder(env: Mapping[str, str]) -> str:
    """Return the folder for a service: that of the program if variables with search paths are relative to it."""
    paths = ("PATH", "LD_LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
    entries = [entry for name in paths if name in env for entry in env[name].split(os.pathsep)]
    return "/" if all(map(os.path.isabs, entries)) else working_folder()


def _connected(place: Place) -> socket.socket:
    """Connect to the server at `place`. Raises `NoSession` if nobody, or another user, is there."""
    if why := place.unsafe():
        raise NoSession(why)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        with short_path(str(place.folder)) as folder:
            sock.connect(f"{folder}/{place.socket.name}")
        if peer(sock) != os.getuid():
            raise NoSession(f"{place.socket} is another user's")
    except OSError as error:
        sock.close()
        raise NoSession(f"it does not answer ({error.strerror}); atune server start starts it anew") from error
    except BaseException:
        sock.close()
        raise
    return sock


def _send(sock: socket.socket, what: bytes, request: Mapping[str, Any], fds: Sequence[int]) -> None:
    _send_file(sock, what, json.dumps(request).encode(), fds)


def _send_file(sock: socket.socket, what: bytes, content: bytes, fds: Sequence[int]) -> None:
    """Send `content` in a file without a name, because it may be larger than a message."""
    file = os.memfd_create("atune-request")
    try:
        with open(file, "wb", closefd=False) as writing:
            writing.write(content)
        socket.send_fds(sock, [what], [file, *fds])
    except OSError as error:
        raise NoSession(f"it cannot be asked: {error.strerror}") from error
    finally:
        os.close(file)


async def _readable(sock: socket.socket) -> None:
    """Wait until an answer comes, but not longer than one may take."""
    with anyio.move_on_after(ANSWER_S):
        await anyio.wait_readable(sock)


def _answer(sock: socket.socket, within_s: float) -> tuple[dict[str, Any], list[int]]:
    """Return the answer to a request. Raises `NoSession` if it is a refusal, or does not come in time."""
    if not select.select([sock], [], [], within_s)[0]:
        raise NoSession(f"it does not answer within {ANSWER_S:g} s; atune server status tells more")
    answer, fds = _received(sock)
    if "misfit" in answer:
        raise NoSession(answer["misfit"])
    return answer, fds


def _received(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive a waiting answer with its descriptors. Raises `NoSession` if the other end has left."""
    try:
        text, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise NoSession(f"it does not answer ({error.strerror})") from error
    if not text:
        raise NoSession("it ended while it was asked")
    answer: dict[str, Any] = json.loads(text)
    return answer, fds
