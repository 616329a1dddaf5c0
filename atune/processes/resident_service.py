"""Services of the resident server: processes that it forks for its clients, and that may outlive their clients.

The server forks a child for each client. The child passes its client to the service of the right kind, or becomes that
service, and tells the server. The server only keeps the other end of each service's control socket. A service learns
by the end of that socket that the server has ended, or has forgotten it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

MOST = 2
"""Services that a server keeps. Further ones take the place of the least recently used."""
MESSAGE_BYTES = 4096


class Running(NamedTuple):
    """A service's process, and the server's end of its control socket."""

    pid: int
    control: socket.socket


class Services:
    """A server's services by kind, least recently used first. A forked child has a copy."""

    def __init__(self) -> None:
        self.running: dict[str, Running] = {}
        self.heard, self._told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.heard.setblocking(False)

    def hear(self) -> list[int]:
        """In the server: note what children have told. Return the pids of new services."""
        new = []
        with suppress(BlockingIOError):
            while True:
                text, fds, _, _ = socket.recv_fds(self.heard, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                kind, pid = json.loads(text)
                found = self.running.get(kind)
                if fds:
                    self._forget(kind)  # two children may become the same service at once
                    found = Running(pid, socket.socket(fileno=fds[0]))
                    new.append(pid)
                if found is not None:
                    self.running.pop(kind, None)
                    self.running[kind] = found
                if len(self.running) > MOST:
                    self._forget(next(iter(self.running)))
        return new

    def ended(self, pid: int) -> None:
        """In the server: forget the service `pid`, if it is one."""
        for kind in [kind for kind, service in self.running.items() if service.pid == pid]:
            self._forget(kind)

    def pass_on(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """In a child: pass `fds` to the service that `request` asks for. Return its pid; zero without one."""
        kind = _kind(request)
        service = self.running.get(kind)
        if service is None:
            return 0
        try:
            socket.send_fds(service.control, [b"client"], fds)
        except OSError:  # it has ended
            return 0
        self._tell(kind, service.pid, [])
        return service.pid

    def register(self, request: Mapping[str, Any]) -> socket.socket:
        """In a child: become the service that `request` asks for. Return its end of the control socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.setblocking(False)
            self._tell(_kind(request), os.getpid(), [theirs.fileno()])
        return ours

    def close(self) -> None:
        """In a child: close all sockets."""
        for sock in (self.heard, self._told, *(service.control for service in self.running.values())):
            sock.close()
        self.running.clear()

    def _forget(self, kind: str) -> None:
        if kind in self.running:
            self.running.pop(kind).control.close()

    def _tell(self, kind: str, pid: int, fds: Sequence[int]) -> None:
        socket.send_fds(self._told, [json.dumps([kind, pid]).encode()], fds)


def _kind(request: Mapping[str, Any]) -> str:
    """Return equal texts for clients that one service can serve: its code, its folder, and all that it takes over."""
    parts = [request["entry"], request["folder"], request["program"]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
