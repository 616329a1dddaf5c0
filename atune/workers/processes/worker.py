"""A worker process as its parent sees it: calls over a socket, hard timeouts, and the tail of its output."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from atune.errors import AtuneError, RemoteError, WorkerError, WorkerLost, WorkerTimeout
from atune.workers.processes.server_main import FRAME, HUNG_UP_WORDS
from atune.workers.system.resources import Deadline

if TYPE_CHECKING:
    from atune.workers.processes.pool import ForkServer

TAIL_BYTES = 4096
PF_EXITING = 0x4
"""Flag of a process that is ending, from before its files are closed (Linux, include/linux/sched.h)."""
REAP_S = 1.0
SLICE_BYTES = 1 << 20
"""Bytes sent or received at once. After that, other tasks of the event loop have their turn."""
CANCEL_S = 0.3
"""Bound of the first step of a cancelled run's cleanup; `atune.workers.processes.pool` has the others."""


class Worker:
    """One process that answers calls, one at a time. Made by `atune.workers.processes.pool.ForkServer.spawn`."""

    def __init__(
        self, server: ForkServer, number: int, name: str, sock: socket.socket, stderr: Path, mark: int
    ) -> None:
        self.name, self.stderr = name, stderr
        self.pid = 0
        """The process, and its group."""
        self._server, self._number = server, number
        self._sock, self._mark = sock, mark
        self._calls = 0
        self._busy = False
        self.forked = anyio.Event()
        """Set once the process exists, or cannot start any more."""
        self.how_ended = ""
        self.with_server = False
        """Whether it ended because its server did."""
        self._outside = False
        self._exited = anyio.Event()

    async def ended(self) -> AtuneError:
        """Wait for the process to end, and return the error that says how it ended."""
        await self._exited.wait()
        return self._lost(f"{self.name} is gone: {self.how_ended}")

    @property
    def alive(self) -> bool:
        """Whether the process can still be called."""
        return not self._exited.is_set()

    @property
    def idle(self) -> bool:
        """Whether the process can be called now."""
        return self.alive and not self._busy

    async def call(self, entry: str, payload: bytes, timeout_s: float | None = None) -> bytes:
        """Run ``module:function`` on `payload` in the worker, and return the resulting bytes.

        Raises `RemoteError` if the function raised; the worker stays usable. Raises `WorkerTimeout` after `timeout_s`,
        and `WorkerLost` if the process ended (`ServerLost` with its server, `MachineError` if no server is left). Their
        `detail` is the tail of the worker's output since the previous call.

        Time in which this program itself is stopped does not count, and a waiting answer is still read. After anything
        except a result or a `RemoteError`, also after cancellation, the worker and its compilers are dead. A process
        that continues without its socket, or answers another request, is lost too: the code that it ran has broken it.
        """
        if self._busy:
            raise RuntimeError(f"{self.name} is in a call already")
        if not self.alive:
            raise self._lost(f"{self.name} is gone: {self.how_ended}")
        self._busy = True
        self._calls += 1
        try:
            deadline = Deadline(timeout_s)
            await send(self._sock, deadline, self._calls, entry.encode(), b"", payload)
            kind, message, body = await receive(self._sock, deadline, self._calls)
        except TimeoutError:
            await self.kill()
            raise WorkerTimeout(f"{self.name} ran {entry} past {timeout_s:g} s", self._tail()) from None
        except OutOfTurn:
            await self.kill()
            how = "something wrote to the socket that its answers go through"
            raise WorkerLost(f"{self.name} answered out of turn in {entry}: {how}", self._tail()) from None
        except (OSError, EOFError, anyio.ClosedResourceError):
            hung_up = self.alive and not _ends(self.pid)  # an end of file alone does not mean that it died
            await self.kill()
            if hung_up:
                raise WorkerLost(f"{self.name} died in {entry}: {HUNG_UP_WORDS}", self._tail()) from None
            raise self._lost(f"{self.name} died in {entry}: {self.how_ended}") from None
        except BaseException:
            await self.kill(CANCEL_S)
            raise
        finally:
            self._busy = False
            if not self.alive:
                self._close()
        with suppress(FileNotFoundError):
            self._mark = self.stderr.stat().st_size
        if kind:
            raise RemoteError(message.decode(errors="replace"), body.decode(errors="replace"), kind.decode())
        return body

    async def kill(self, within_s: float = REAP_S) -> None:
        """SIGKILL the worker's process group and wait up to `within_s` until it is reaped, also if cancelled."""
        with anyio.move_on_after(within_s, shield=True):
            if self.alive:
                with suppress(WorkerError):
                    await self._server.order({"op": "kill", "id": self._number}, [])
            await self._exited.wait()
        if self.alive:  # the server hangs
            if self.pid:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.set_ended("killed by SIGKILL, not reaped")

    def set_ended(self, how: str, *, outside: bool = False, with_server: bool = False) -> None:
        """Record that the process has ended: by a signal from `outside`, or `with_server`, because the server ended."""
        if self.alive:
            self.how_ended = how
            self._outside, self.with_server = outside, with_server
            self._server.forget(self._number)
            self.forked.set()
            self._exited.set()
            if self._busy:  # an answer from before the end can still be read; then comes the end of file
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
            else:
                self._close()

    def _lost(self, message: str) -> AtuneError:
        """Return the error for the ended process."""
        if self.with_server:
            return self._server.loss(message, self._tail())
        return WorkerLost(message, self._tail(), outside=self._outside)

    def _close(self) -> None:
        if self._sock.fileno() >= 0:
            anyio.notify_closing(self._sock)
            self._sock.close()

    def _tail(self) -> str:
        return read_tail(self.stderr, self._mark)


class OutOfTurn(Exception):
    """The received frame is no reply to the request."""


async def send(sock: socket.socket, deadline: Deadline, number: int, *parts: bytes) -> None:
    """Send request `number` over a non-blocking socket, in as many parts as it needs."""
    for part in (FRAME.pack(number, *map(len, parts)), *parts):
        view = memoryview(part)
        while view:
            try:
                view = view[sock.send(view[:SLICE_BYTES]) :]
                await anyio.lowlevel.checkpoint()
            except BlockingIOError:
                await deadline.wait(lambda: anyio.wait_writable(sock))


async def receive(sock: socket.socket, deadline: Deadline, number: int) -> list[bytes]:
    """Receive the reply to request `number` from a non-blocking socket.

    A second reply to an earlier request is skipped, because it is not this request's fault. Raises `OutOfTurn` for
    anything else, and `EOFError` if the stream ends.
    """

    async def exactly(size: int) -> bytes:
        try:
            buffer, filled = memoryview(bytearray(size)), 0
        except (MemoryError, OverflowError):
            raise OutOfTurn from None  # not a size that atune sent
        while filled < size:
            try:
                got = sock.recv_into(buffer[filled : filled + SLICE_BYTES])
            except BlockingIOError:
                await deadline.wait(lambda: anyio.wait_readable(sock))
                continue
            if got == 0:
                raise EOFError
            filled += got
            await anyio.lowlevel.checkpoint()
        return bytes(buffer)

    while True:
        answered, *sizes = FRAME.unpack(await exactly(FRAME.size))
        if answered > number:
            raise OutOfTurn
        parts = [await exactly(size) for size in sizes]
        if answered == number:
            return parts


def _ends(pid: int) -> bool:
    """Tell whether a process is dying or dead; then its end has closed the socket."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return True
    return state in "ZX" or bool(int(fields[5]) & PF_EXITING)


def read_tail(path: Path, start: int = 0) -> str:
    """Return the tail of a log, from `start` on at the earliest; empty if the file is gone."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
    return ""
