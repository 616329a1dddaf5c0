"""The resident server: imports the heavy modules once, and forks a session for each program that asks.

The server only accepts, checks the client's user, and forks. `resident_session` does the rest in the child, so that no
client can block the server. Sessions may outlive it. Single-threaded, as fork needs; CUDA is never started here.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from atune.processes import server_main
from atune.processes.fit import facts, packages, stamps
from atune.processes.resident_place import peer
from atune.processes.resident_service import Services
from atune.processes.resident_session import Imported, answer, imported_environment, imported_path

BACKLOG = 64
TRY_AGAIN_S = 0.1


def main(config: dict[str, Any]) -> NoReturn:
    """Serve at ``config["socket"]`` until no client came for ``config["idle_s"]``, or until a SIGTERM.

    Reports how the start went, as JSON, over the pipe ``config["ready"]``. One server at a time holds the lock beside
    the socket.
    """
    os.set_inheritable(config["ready"], False)
    server, said = _begin(config)
    with suppress(OSError), open(config["ready"], "w") as ready:  # the process that started it may have exited
        ready.write(json.dumps(said))
    if server is None:
        os._exit(1)
    try:
        server.serve()
    except BaseException:
        with suppress(OSError):  # the log's disk may be full
            traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _begin(config: dict[str, Any]) -> tuple[Resident | None, dict[str, Any]]:
    """Return the server, once it listens, and the report on its start."""
    try:
        lock = _lock(config["lock"])
        if lock is None:
            return None, {"taken": True}
        imported, seconds = _import(config["preload"])
        server = Resident(_listening(config["socket"]), lock, config, imported)
    except Exception as error:
        return None, {"error": f"{type(error).__name__}: {error}"}
    return server, {"pid": os.getpid(), "seconds": seconds}


class Resident:
    """Accepts clients of this user, and forks a child for each. `config`: as in `main`."""

    def __init__(self, listening: socket.socket, lock: int, config: dict[str, Any], imported: Imported) -> None:
        self.listening, self.lock, self.imported = listening, lock, imported
        self.idle_s: float = config["idle_s"]
        self.path: str = config["socket"]
        self.woken, self.wakeup = socket.socketpair()
        self.clients: dict[int, socket.socket] = {}
        """Clients' sockets by the pid of their child. A session's client learns over it how the session ended."""
        self.services = Services()
        self.served = 0
        self.began = self.idle_since = time.monotonic()
        self.stopping = False

    def serve(self) -> None:
        """Serve until the server was idle for too long, or told to stop. Sessions continue."""
        self.wakeup.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        poll = select.poll()
        poll.register(self.listening, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        poll.register(self.services.heard, select.POLLIN)
        while not self.stopping:
            self._reap()
            left_s = self.idle_since + self.idle_s - time.monotonic()
            if not self.clients and left_s <= 0:
                break
            ready = {fd for fd, _ in poll.poll(None if self.clients else left_s * 1000 + 1)}
            if self.woken.fileno() in ready:
                self.woken.recv(4096)
            if self.listening.fileno() in ready:
                self._accept()
        with suppress(OSError):
            os.unlink(self.path)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _hear(self) -> None:
        """Note which children have become services. Such a child has its client's socket, and outlives it."""
        for pid in self.services.hear():
            if pid in self.clients:
                self.clients.pop(pid).close()

    def _accept(self) -> None:
        self._hear()  # the client may want a service that another client has just been told of
        try:
            client, _ = self.listening.accept()
        except OSError:  # the client left already, or no descriptor is free
            time.sleep(TRY_AGAIN_S)
            return
        if peer(client) != os.getuid():
            client.close()
            return
        told = {
            "pid": os.getpid(),
            "up_s": round(time.monotonic() - self.began, 1),
            "idle_s": self.idle_s,
            "sessions": len(self.clients),
            "served": self.served,
            "services": [service.pid for service in self.services.running.values()],
        }
        try:
            pid = os.fork()
        except OSError:
            client.close()  # this tells the client
            time.sleep(TRY_AGAIN_S)
            return
        if pid == 0:
            self._leave_to_child()
            answer(client, self.imported, told, self.services)
        self.clients[pid] = client

    def _leave_to_child(self) -> None:
        """In a child: close the server's descriptors, except those of services, and reset its signal handlers."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(self.lock)
        for sock in (self.listening, self.woken, self.wakeup, *self.clients.values()):
            sock.close()
        self.clients.clear()

    def _reap(self) -> None:
        """Reap children that have ended, and tell their clients how."""
        self._hear()
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self.services.ended(pid)
                client = self.clients.pop(pid, None)
                if client is None:
                    continue
                with suppress(OSError), client:
                    if status:  # a session, which ends by a signal; other children only answer
                        self.served += 1
                        self.idle_since = time.monotonic()
                        client.setblocking(False)
                        client.send(json.dumps({"ended": os.waitstatus_to_exitcode(status)}).encode())


def _lock(path: str) -> int | None:
    """Take the lock that one server holds; None if another server holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    os.truncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())  # for people, and for ending a server that does not answer
    return fd


def _listening(path: str) -> socket.socket:
    """Listen at `path`, and replace the socket of a server that was killed."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # an address holds 107 bytes
    finally:
        os.close(folder)
    os.chmod(path, 0o600)
    sock.listen(BACKLOG)
    return sock


def _import(preload: list[str]) -> tuple[Imported, float]:
    """Import the modules that sessions need. Returns them with the seconds that took. Raises `RuntimeError` if an
    import fails."""
    env, path, before = dict(os.environ), list(sys.path), facts(os.environ)
    done = server_main.preload(preload)
    if done["error"]:
        raise RuntimeError(done["error"])
    imported = Imported(
        preload=preload,
        before=before,
        after=facts(os.environ),
        stamps=stamps(),
        packages=packages(),
        environment=imported_environment(env, os.environ),
        path=imported_path(path, sys.path),
    )
    return imported, done["seconds"]
