"""The parent's side of the worker processes: starting processes, calling them, and leaving no process behind.

The fork server (`server_main`) imports the heavy modules and forks the workers, so this module imports none of them.
Every wait goes through the event loop, on non-blocking sockets and under any of anyio's backends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from atune.errors import (
    AtuneError,
    MachineError,
    RemoteError,
    ServerLost,
    UsageError,
    WorkerError,
    WorkerLost,
    WorkerTimeout,
)
from atune.model.requirements import not_installed
from atune.workers.server import ForkServerProcess
from atune.workers.server_main import (
    CONTROL_BYTES,
    HUNG_UP_WORDS,
    REPLY,
    REQUEST,
    descendants,
    describe,
    from_outside,
)
from atune.workers.waiting import Deadline, background

CANCEL_S, GRACE_S, HAMMER_S = 0.3, 0.4, 0.2
"""Time limits, in seconds, of the steps that clean up after a cancelled run. The sum of the limits is less than a
second."""
START_TIMEOUT_S = CALL_TIMEOUT_S = 300.0
"""Seconds that importing the preload may take, and seconds that forking a worker may take afterwards. The same limit
applies to calls without their own limit, for example to load the user's file. Even slow machines need far less time."""
FIRST_TIMEOUT_S = 5.0
"""Seconds without a forked worker after which another server replaces the first one. Forking takes milliseconds."""

TAIL_BYTES = 4096
READ_BYTES, PRINTED_CHARACTERS = 1 << 16, 2000
"""Largest number of bytes of a call's output to read, and largest number of characters of the output to keep."""
PF_EXITING = 0x4
"""Linux's flag of an ending process, which Linux sets before it closes the process's files (include/linux/sched.h)."""
STARVED_SHARE = 0.5
"""If a call's processes got less CPU time than this share of the call's duration, and one of these processes still
waits for a CPU, the machine was too busy for the call."""
REAP_S = 1.0
SLICE_BYTES = 1 << 20
"""Largest number of bytes to send or receive before other tasks of the event loop get their turn."""


class ForkServer(anyio.AsyncContextManagerMixin):
    """Owns the fork server and all workers. When the context ends, the server, the workers and their compilers end.

    `process`: a new or a parked server. Entering the context does not wait for the server's imports. Leaving the
    context takes less than a second, whatever the processes do.

    `park`: a function that parks a server for the next run. If the body was not cancelled and the server answers, the
    server is parked instead of ended, but its workers end.

    `again`: a function that starts a replacement for a server that is lost or hangs. `spawn` waits for the replacement.
    After a second loss, `spawn` raises `MachineError`. At each loss, running calls raise `ServerLost`.
    """

    def __init__(
        self,
        process: ForkServerProcess,
        *,
        park: Callable[[ForkServerProcess], None] | None = None,
        again: Callable[[], ForkServerProcess] | None = None,
    ) -> None:
        self.process, self._park, self._again = process, park, again
        self._workers: dict[int, Worker] = {}
        self._failure = ""
        """Why the server is gone or cannot fork."""
        self._absent = ""
        """A message that names packages to install; empty if no package that atune requires is missing."""
        self._running = self._leaving = False
        self._first_loss = ""
        """Why the first server was lost; empty if it was not replaced."""
        self.hangs = ""
        """What the server did not do in time; empty if the server answers. A server that hangs is not parked."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[ForkServer, None]:
        async with background(cancel=False) as tasks:
            self._ready = anyio.Event()
            self._listening = anyio.CancelScope(shield=True)
            self._control = self.process.control
            if self.process.preload_s is not None:
                self._ready.set()
            self._running = True
            tasks.start_soon(self._listen)
            detached = False
            try:
                try:
                    yield self
                except Exception:
                    with anyio.CancelScope(shield=True):
                        detached = await self._detach(CANCEL_S)
                    raise
                detached = await self._detach()
            finally:  # also if detaching was cancelled
                if not detached:
                    await self._stop()

    async def spawn(
        self,
        role: str,
        *,
        env: Mapping[str, str] | None = None,
        cpus: Sequence[int] | None = None,
        nice: int = 0,
    ) -> Worker:
        """Fork a worker, after the server has imported the preload.

        The worker uses only the CPUs in `cpus`. `nice` is added to the worker's niceness, and `env` extends its
        environment. Raises `ServerLost` if the server ends during the call, `MachineError` if the server's replacement
        has ended, too, and `UsageError` if tilelang or torch is not installed. Raises `WorkerError`, with the tail of
        the server's log, if the preload fails for another reason, or if the server is gone or does not answer in time.
        A cancelled call leaves no worker.
        """
        if not self._running:
            raise WorkerError("the fork server is not open")
        while not self._ready.is_set():  # a new server has a new event
            await self._answered(self._ready, f"import {self.process.imports}")
        if self._failure:
            raise self._error()
        number = next(self.process.numbers)
        name = f"{role}-{number}"
        path = self.process.folder / f"{name.replace('/', '_')}.stderr"
        order: dict[str, Any] = {"op": "fork", "id": number, "env": dict(env or {}), "nice": nice}
        order["cpus"] = None if cpus is None else list(cpus)
        with path.open("ab") as stderr:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            worker = self._workers[number] = Worker(self, number, name, ours, path, stderr.tell())
            try:
                with theirs:
                    await self.order(order, [theirs.fileno(), stderr.fileno()])
                await self._answered(worker.forked, f"fork {name}")
            except BaseException:
                await worker.kill(CANCEL_S)
                raise
        if not worker.pid:
            message = f"{name} did not start: {worker.how_ended}"
            raise ServerLost(message) if worker.with_server else WorkerError(message, read_tail(self.process.log))
        return worker

    async def _answered(self, event: anyio.Event, step: str) -> None:
        """Wait until the server has completed `step` or is gone. Raises `WorkerError` if the last server hangs."""
        who = f"the fork server (process {self.process.pid}) did not {step}"
        first = self._again is not None and not self._first_loss
        came = await _comes(event, FIRST_TIMEOUT_S if first else START_TIMEOUT_S)
        if first and not came and (self._ready.is_set() or _stat(self.process.pid)[0] in "Tt"):
            self.hangs = f"{who} within {FIRST_TIMEOUT_S:g} s"  # importing may take longer
            self._kill_all()  # `_listen` notices the end, and starts another server
        if not (came or (first and await _comes(event, START_TIMEOUT_S))):
            self.hangs = who
            raise WorkerError(
                f"{who} within {START_TIMEOUT_S:g} s: it hangs, or was stopped. Look for a file system that does not "
                "answer, or for a program that sends SIGSTOP",
                read_tail(self.process.log),
            )

    def pids(self) -> list[int]:
        """Return the pids of the server and of the living workers. Each pid is also the id of a process group."""
        server = [self.process.pid] if self._running and self.process.returncode is None else []
        return server + [worker.pid for worker in self._workers.values() if worker.pid]

    async def _detach(self, within_s: float = REAP_S) -> bool:
        """Park the server for the next run. Return False if the server's state does not allow parking. The workers get
        `within_s` to end. A server that is still importing has no workers yet, and can be parked, too."""
        self._leaving = True
        if self._park is None or self._failure or self.hangs:
            return False
        async with anyio.create_task_group() as tasks:
            for worker in list(self._workers.values()):
                tasks.start_soon(worker.kill, within_s)
        if self._workers or self._failure or self.hangs or self.process.returncode is not None:
            return False
        for stderr in self.process.folder.glob("*.stderr"):
            stderr.unlink(missing_ok=True)  # the next run's workers have other names
        self._running = False
        self._listening.cancel()
        self._park(self.process)
        return True

    async def order(self, message: dict[str, Any], fds: list[int]) -> None:
        """Send a message and file descriptors to the server. Raises `WorkerError` if the server was closed."""
        data, control = json.dumps(message).encode(), self._control
        while self._running:
            if control is not self._control:
                return  # the server is gone, and the worker concerned has been told
            try:
                socket.send_fds(control, [data], fds)
                return
            except BlockingIOError:
                with suppress(anyio.ClosedResourceError):
                    await anyio.wait_writable(control)
            except (BrokenPipeError, ConnectionResetError):
                return  # the server is gone, and `_listen` tells everybody
        raise WorkerError("the fork server was closed")

    def forget(self, number: int) -> None:
        self._workers.pop(number, None)

    async def _listen(self) -> None:
        """Read the server's messages until the server ends, and then read the messages of its replacement. Reading is
        shielded from cancellation, because the cleanup after a cancellation needs the reports of ended workers."""
        with self._listening:
            while True:
                while data := await self._hear():
                    with suppress(Exception):  # in case a candidate's code wrote the message
                        self._on_message(json.loads(data))
                self._kill_all()
                with anyio.move_on_after(GRACE_S):
                    await self.process.wait()
                while_doing = "" if self._ready.is_set() else f" while importing {self.process.imports}"
                why = self.hangs or f"the fork server ended{while_doing}: {describe(self.process.returncode)}"
                if not self._replaced(why):
                    self._lost(why)
                    return

    def _on_message(self, message: dict[str, Any]) -> None:
        worker = self._workers.get(message.get("id", -1))
        if message["op"] == "ready" and not self._ready.is_set():
            self.process.preload_s = float(message["seconds"])
            if message["error"]:
                self._failure = f"preloading {self.process.imports} failed: {message['error']}"
                self._absent = not_installed(message["absent"])
            self._ready.set()
        elif message["op"] == "forked" and worker and not worker.pid:
            worker.pid = int(message["pid"])
            worker.forked.set()
        elif message["op"] == "exited" and worker:
            worker.set_ended(str(message["how"]), outside=bool(message.get("outside")))

    async def _hear(self) -> bytes:
        """Return the next message from the server; empty if the server has hung up."""
        hung_up = select.poll()
        hung_up.register(self._control, select.POLLRDHUP)
        while True:
            try:
                if (data := self._control.recv(CONTROL_BYTES)) or hung_up.poll(0):
                    return data
            except BlockingIOError:
                await anyio.wait_readable(self._control)
            except OSError:
                return b""

    def _replaced(self, why: str) -> bool:
        """Replace the lost server, and return whether a new server was started. A new server does not help if the
        import itself fails, or after a second loss, which shows that something kills the processes."""
        may_help = self._ready.is_set() or from_outside(self.process.returncode)
        if self._again is None or not may_help or self._first_loss or self._failure or self._leaving:
            return False
        try:
            process = self._again()
        except (AtuneError, OSError):
            return False
        self._first_loss, self.hangs = why, ""
        waited_for, self._ready = self._ready, anyio.Event()
        self._tell_all(why)
        anyio.notify_closing(self._control)
        self._control.close()
        self.process.reap()
        process.numbers = self.process.numbers  # so that no two workers share a number or a name
        self.process, self._control = process, process.control
        waited_for.set()
        return True

    def _lost(self, why: str) -> None:
        """Tell every waiting task that the server is gone."""
        self._failure = self._failure or why
        self._ready.set()
        self._tell_all(why)

    def _tell_all(self, why: str) -> None:
        for worker in list(self._workers.values()):
            worker.set_ended(why, with_server=True)

    def _error(self) -> AtuneError:
        """Return the error for a request to a server that is gone or cannot fork."""
        if self._absent:
            return UsageError(self._absent)
        if not self._first_loss or self._leaving:
            return WorkerError(self._failure, read_tail(self.process.log))
        return MachineError(
            f"{self._failure}; the server before it was lost, too ({self._first_loss}). Find out what ends this run's "
            "processes: too little memory (see dmesg; fewer --workers need less), or a limit of a container or a "
            "scheduler. The journal keeps all measurements, and `atune resume JOURNAL` continues the run"
        )

    def _kill_all(self) -> None:
        """SIGKILL all processes without the server's help. Closing the lifeline makes the kernel kill the processes,
        without races. The explicit signals are needed if a fork of this program also holds the lifeline, or if
        processes have left their worker's process group."""
        workers = [worker.pid for worker in self._workers.values() if worker.pid]
        below = descendants([*workers, *([self.process.pid] if self.process.returncode is None else [])])
        self.process.hang_up()
        for pid in workers:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    async def _stop(self) -> None:
        """End all processes through the server, which reaps them. Then call `_kill_all`. Shielded and bounded."""
        self._leaving = True
        with anyio.CancelScope(shield=True):
            try:
                if self._ready.is_set():  # a server that is still importing cannot listen
                    with suppress(OSError):
                        self._control.shutdown(socket.SHUT_WR)
                    with anyio.move_on_after(GRACE_S):
                        await self.process.wait()
            finally:  # even if asyncio's own cancellation, which ignores shields, interrupts the wait
                self._kill_all()
                try:
                    with anyio.move_on_after(HAMMER_S):
                        await self.process.wait()
                finally:
                    self.process.reap()
                    self._lost("the fork server was closed")
                    self._running = False
                    self._listening.cancel()
                    anyio.notify_closing(self._control)
                    self._control.close()


class Worker:
    """The parent's view of a worker process, which answers one call at a time. `ForkServer.spawn` creates it."""

    def __init__(
        self, server: ForkServer, number: int, name: str, sock: socket.socket, stderr: Path, mark: int
    ) -> None:
        self.name, self.stderr = name, stderr
        self.pid = 0
        """The pid of the process, which is also the id of its process group; 0 before the process exists."""
        self.printed = ""
        """The first lines that the last call printed, without repeated lines."""
        self._server, self._number = server, number
        self._sock, self._mark = sock, mark
        self._calls = 0
        self._busy = False
        self.forked = anyio.Event()
        """An event that is set when the process exists or can no longer start."""
        self.how_ended = ""
        self.with_server = False
        """Whether the process ended because its server ended."""
        self._outside = False
        self._exited = anyio.Event()

    async def ended(self) -> WorkerLost:
        """Wait until the process has ended, and return an error that has the reason."""
        await self._exited.wait()
        return self._lost(f"{self.name} is gone: {self.how_ended}")

    @property
    def alive(self) -> bool:
        """Whether the process can still be called."""
        return not self._exited.is_set()

    async def call(self, entry: str, payload: bytes, timeout_s: float = CALL_TIMEOUT_S) -> bytes:
        """Run ``module:function`` on `payload` in the worker, and return the resulting bytes.

        If the function raises an exception, raises `RemoteError`, and the worker stays usable. Raises `WorkerTimeout`
        after `timeout_s`, and `WorkerLost` if the process ended (`ServerLost` if the process ended with its server).
        The `detail` of these errors is the tail of the worker's output since the previous call.

        While this program is stopped, the time does not count, and an answer that has arrived is still read. If the
        call neither returns a result nor raises `RemoteError`, the worker and its compilers are dead. A process that
        runs on without its socket, or that answers another request, counts as lost, because its code has broken it.
        """
        if self._busy:
            raise RuntimeError(f"{self.name} is already in a call")
        if not self.alive:
            raise self._lost(f"{self.name} is gone: {self.how_ended}")
        self._busy = True
        self.printed = ""
        self._calls += 1
        cpu_before_s, _ = _cpu_of(self.pid)
        try:
            deadline = Deadline(timeout_s)
            await send(self._sock, deadline, self._calls, entry.encode(), payload)
            kind, message, body = await receive(self._sock, deadline, self._calls)
        except TimeoutError:
            cpu_s, waits = _cpu_of(self.pid)
            starved = waits and cpu_s - cpu_before_s < STARVED_SHARE * timeout_s
            await self.kill()
            raise WorkerTimeout(
                f"{self.name} ran {entry} past {timeout_s:g} s", self._tail(), starved=starved
            ) from None
        except OutOfTurn:
            await self.kill()
            how = "something wrote to the socket for its replies"
            raise WorkerLost(f"{self.name} sent an invalid reply to {entry}: {how}", self._tail()) from None
        except (OSError, EOFError, anyio.ClosedResourceError):
            hung_up = self.alive and not _ends(self.pid)  # an end of file alone does not mean that the process died
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
            before, self._mark = self._mark, self.stderr.stat().st_size
            if self._mark > before:
                self.printed = read_printed(self.stderr, before)
        if kind:
            raise RemoteError(message.decode(errors="replace"), body.decode(errors="replace"), kind.decode())
        return body

    async def kill(self, within_s: float = REAP_S) -> None:
        """SIGKILL the worker's process group. Wait up to `within_s` until the worker is reaped, even if cancelled."""
        with anyio.move_on_after(within_s, shield=True):
            if self.alive:
                with suppress(WorkerError):
                    await self._server.order({"op": "kill", "id": self._number}, [])
            await self._exited.wait()
        if self.alive:
            state, *fields = _stat(self.pid)
            if state in "ZX" or not int(fields[5]) & PF_EXITING:  # otherwise the kernel is freeing its memory
                self._server.hangs = f"the fork server did not end {self.name}"
            if self.pid:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.set_ended("killed by SIGKILL, not reaped")

    def set_ended(self, how: str, *, outside: bool = False, with_server: bool = False) -> None:
        """Record how the process ended. `outside`: by an outside signal. `with_server`: because its server ended."""
        if self.alive:
            self.how_ended = how
            self._outside, self.with_server = outside, with_server
            self._server.forget(self._number)
            self.forked.set()
            self._exited.set()
            if self._busy:  # an earlier answer can still be read, before the end of file
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
            else:
                self._close()

    def _lost(self, message: str) -> WorkerLost:
        if self.with_server:
            return ServerLost(message, self._tail())
        return WorkerLost(message, self._tail(), outside=self._outside)

    def _close(self) -> None:
        if self._sock.fileno() >= 0:
            anyio.notify_closing(self._sock)
            self._sock.close()

    def _tail(self) -> str:
        return read_tail(self.stderr, self._mark)


async def _comes(event: anyio.Event, within_s: float) -> bool:
    """Wait for an event for at most `within_s` seconds, and return whether the event came."""
    deadline = Deadline(within_s)
    with suppress(TimeoutError):
        while not event.is_set():
            await deadline.wait(event.wait)
    return event.is_set()


class OutOfTurn(Exception):
    """A received frame is not the reply to the current request."""


async def send(sock: socket.socket, deadline: Deadline, number: int, *parts: bytes) -> None:
    """Send request `number` over a non-blocking socket."""
    for part in (REQUEST.pack(number, *map(len, parts)), *parts):
        view = memoryview(part)
        while view:
            try:
                view = view[sock.send(view[:SLICE_BYTES]) :]
                await anyio.lowlevel.checkpoint()
            except BlockingIOError:
                await deadline.wait(lambda: anyio.wait_writable(sock))


async def receive(sock: socket.socket, deadline: Deadline, number: int) -> list[bytes]:
    """Receive the reply to request `number` from a non-blocking socket.

    Skips a second reply to an earlier request, because the current request did not cause it. Raises `OutOfTurn` for any
    other frame, and `EOFError` if the stream ends.
    """

    async def exactly(size: int) -> bytes:
        try:
            buffer, filled = memoryview(bytearray(size)), 0
        except (MemoryError, OverflowError):
            raise OutOfTurn from None  # atune sends no frame of this size
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
        answered, *sizes = REPLY.unpack(await exactly(REPLY.size))
        if answered > number:
            raise OutOfTurn
        parts = [await exactly(size) for size in sizes]
        if answered == number:
            return parts


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat``, beginning with the process's state. A missing process has the state X
    (dead)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ["X", *"0" * 20]


def _cpu_of(pid: int) -> tuple[float, bool]:
    """Return the CPU seconds of a process and its descendants, and whether any of them runs or waits for a CPU."""
    stats = [_stat(process) for process in (pid, *descendants([pid]))]
    ticks = sum(int(field) for stat in stats for field in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK"), any(stat[0] == "R" for stat in stats)


def _ends(pid: int) -> bool:
    """Tell whether a process is dying or dead. If so, the process's socket was closed by the kernel, and not by the
    process's code."""
    state, *fields = _stat(pid)
    return state in "ZX" or bool(int(fields[5]) & PF_EXITING)


def read_printed(path: Path, start: int) -> str:
    """Return the first lines of a log after `start`. Omit repeated lines, because timed code may print a line often."""
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read(READ_BYTES).decode(errors="replace").splitlines()
    text = "".join(f"{line}\n" for line in dict.fromkeys(lines))
    return text if len(text) <= PRINTED_CHARACTERS else f"{text[:PRINTED_CHARACTERS]}…\n"


def read_tail(path: Path, start: int = 0) -> str:
    """Return the tail of a log, but nothing before the offset `start`; empty if the log is gone."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
    return ""
