"""The compile service of a resident server: it keeps parsed headers, and serves several programs at once.

The resident server forks it and passes it the sockets of programs with equal surroundings. Each has a cicc that fits
its candidates, see `cicc_server`. A program that leaves leaves its cicc to the next. The service ends when the resident
server has ended, or has forgotten it, and no program is connected.

Single-threaded: cicc ends with the thread that started it.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from atune.processes.messages import ServiceReady
from atune.stages.accelerators.cicc_server import CiccError, Server, includes_for
from atune.stages.accelerators.service import Wanted, arch_of_this_machine, new_server
from atune.stages.compile.device_source import Flavour
from atune.system.folders import server_folder

MOST = 3
"""Parsed headers that are kept. The least recently used go first, but none that a connected program uses."""
PARSE_S = 60
"""After that long a hanging compiler ends the service."""


def serve(control: socket.socket, client: socket.socket, watched: int) -> None:
    """Serve `client`, and the further clients that arrive at `control`.

    `watched`: a pidfd of the client's process, because a process forked from it may hold the socket, too.
    """
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    tempfile.tempdir = None
    folder, remove = server_folder()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        SharedService(control).serve(client, watched)
    finally:
        remove()


class Client:
    """A connected program, and the server that it uses."""

    def __init__(self, sock: socket.socket, watched: int) -> None:
        self.sock, self.watched = sock, watched
        self.server: Server | None = None


class SharedService:
    """Answers clients' requests one after another. `control`: its socket to the resident server."""

    def __init__(self, control: socket.socket) -> None:
        self.clients: list[Client] = []
        self.servers: dict[int, Server] = {}
        """By pidfd, least recently used first."""
        self._control = control
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def serve(self, client: socket.socket, watched: int) -> None:
        self._control.setblocking(False)
        self._watch(self._control.fileno(), self._join)
        self._add(client, watched)
        try:
            while self._control.fileno() in self._handlers or self.clients:
                fd, _ = self._poll.poll()[0]  # one at a time, because it may close the others
                self._handlers[fd]()
        finally:
            for pidfd in list(self.servers):
                self._end(pidfd)

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._poll.unregister(fd)

    def _join(self) -> None:
        """Take the next client. At the end of the resident server only the present ones remain."""
        text, fds, _, _ = socket.recv_fds(self._control, 64, 2, socket.MSG_CMSG_CLOEXEC)
        if text:
            self._add(socket.socket(fileno=fds[0]), fds[1])
        else:
            self._unwatch(self._control.fileno())

    def _add(self, sock: socket.socket, watched: int) -> None:
        sock.setblocking(False)
        client = Client(sock, watched)
        self.clients.append(client)
        self._watch(sock.fileno(), functools.partial(self._answer, client))
        self._watch(watched, functools.partial(self._leave, client))

    def _leave(self, client: Client) -> None:
        self.clients.remove(client)
        for fd in (client.sock.fileno(), client.watched):
            self._unwatch(fd)
        client.sock.close()
        os.close(client.watched)

    def _answer(self, client: Client) -> None:
        """Answer a client's request. Hang up if that is impossible: the client then has a service of its own."""
        try:
            entry, fds, _, _ = socket.recv_fds(client.sock, 256, 1, socket.MSG_CMSG_CLOEXEC)
            if not entry:
                self._leave(client)
                return
            with open(fds[0], "rb") as file:
                file.seek(0)
                payload = file.read()
            ready = self._ready(client, entry.decode().rpartition(":")[2], payload)
            client.sock.send(msgspec.msgpack.encode(ready))
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            self._leave(client)

    def _ready(self, client: Client, name: str, payload: bytes) -> ServiceReady:
        try:
            if name == "listen":
                wanted = Wanted.decoded(payload)
                server, made_s = self._server(wanted.flavour, *wanted.headers(), wanted.source)
                server.link(wanted.folder)
            else:
                flavour = Flavour(msgspec.msgpack.decode(payload, type=str) or arch_of_this_machine())
                includes = includes_for(flavour.arch)
                source = "".join(f"#include {name}\n" for name in includes)
                if name == "find" and self._found(flavour, source) is None:
                    return ServiceReady(False, resident=True)
                server, made_s = self._server(flavour, includes, "", source)
            client.server = server
        except CiccError as error:
            return ServiceReady(False, str(error)[:500], resident=True)
        return ServiceReady(True, "", made_s, resident=True, saved_s=0.0 if made_s else server.header_s)

    def _server(self, flavour: Flavour, includes: Sequence[str], first: str, source: str) -> tuple[Server, float]:
        """Return a server that fits `source`, and the seconds that making it took; zero if it was there."""
        server = self._found(flavour, source)
        if server is not None:
            return server, 0.0
        for unused in self._unused()[: max(0, len(self.servers) + 1 - MOST)]:
            self._end(unused)
        signal.alarm(PARSE_S)
        try:
            server = new_server(flavour, includes, first)
        finally:
            signal.alarm(0)
        pidfd = os.pidfd_open(server.process.pid)
        self.servers[pidfd] = server
        self._watch(pidfd, functools.partial(self._end, pidfd))
        return server, server.header_s

    def _found(self, flavour: Flavour, source: str) -> Server | None:
        """Return the server that fits `source`, which becomes the last used. End unused ones that are out of date."""
        for pidfd in self._unused():
            if not self.servers[pidfd].up_to_date():
                self._end(pidfd)
        for pidfd, server in self.servers.items():
            if server.flavour == flavour and server.fits(flavour, source) and server.up_to_date():
                self.servers[pidfd] = self.servers.pop(pidfd)
                return server
        return None

    def _unused(self) -> list[int]:
        used = [client.server for client in self.clients]
        return [pidfd for pidfd, server in self.servers.items() if server not in used]

    def _end(self, pidfd: int) -> None:
        """End a server, or notice its end. Hang up on the clients that use it."""
        self._unwatch(pidfd)
        server = self.servers.pop(pidfd)
        os.close(pidfd)
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
        for client in [client for client in self.clients if client.server is server]:
            self._leave(client)
