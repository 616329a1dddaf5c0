"""The parent's side of the worker processes: start them, call into them, and never leave one behind.

Workers are forked by `atune.processes.server_main`, which has the heavy modules imported; this module imports none of
them. Every wait here goes through the event loop, on non-blocking sockets and under any of anyio's backends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from atune.errors import WorkerError
from atune.processes.background import background
from atune.processes.server import ServerProcess
from atune.processes.server_main import CONTROL_BYTES, descendants, describe
from atune.processes.worker import CANCEL_S, Worker, read_tail
from atune.system.deadline import Deadline

GRACE_S, HAMMER_S = 0.4, 0.2
"""Bounds of the last steps of a cancelled run's cleanup; with `CANCEL_S` before them they stay under a second."""
START_TIMEOUT_S = 300.0
"""For importing the preload, and for forking a worker after it: never what a slow machine needs."""


class ForkServer(anyio.AsyncContextManagerMixin):
    """Owns the fork server and every worker: none of them, nor a compiler of theirs, outlives the `async with`.

    Entering returns while the server still imports `preload`. Leaving takes under a second, whatever the processes
    are doing. `run_dir` receives the server's log and each worker's stderr and belongs to this server alone; `env`
    goes to all processes on top of the parent's environment. `start_timeout_s`: how long the server may take to import
    `preload`, and then to fork a worker.

    With `process` it attaches to a server that was started already, or left parked. With `park`, a server whose body
    ended without an error is handed to it instead of being ended; its workers are ended all the same, but for `lasting`
    ones that are not in a call.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        run_dir: str = "",
        env: Mapping[str, str] | None = None,
        process: ServerProcess | None = None,
        park: Callable[[ServerProcess], None] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.preload = tuple(preload)
        self.run_dir = Path(run_dir) if process is None else process.folder
        self.env = dict(env or {})
        self.preload_s: float | None = None
        """Seconds that importing `preload` took; None until that is done."""
        self._given, self._park = process, park
        self._start_timeout_s = start_timeout_s
        self._process: ServerProcess
        self._workers: dict[int, Worker] = {}
        self._failure = ""
        self._running = False

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[ForkServer, None]:
        async with background(cancel=False) as tasks:
            self._start()
            tasks.start_soon(self._listen)
            well = detached = False
            try:
                yield self
                well = True
            finally:
                try:
                    detached = well and await self._detach()
                finally:  # also when that was cancelled
                    if not detached:
                        await self._stop()

    async def spawn(
        self,
        lane: str,
        *,
        env: Mapping[str, str] | None = None,
        cpus: Sequence[int] | None = None,
        nice: int = 0,
        lasting: bool = False,
    ) -> Worker:
        """Fork a worker, once the preload is done.

        `cpus` limits it to these CPUs, `nice` is added to its niceness, `env` comes on top of the server's. A `lasting`
        worker stays when the server is parked. Raises `WorkerError`, with the tail of the server's log, when the
        preload failed, or the server is gone or does not answer in time. Cancellation leaves no worker behind.
        """
        if not self._running:
            raise WorkerError("the fork server is not open")
        await self._answered(self._ready, f"import {', '.join(self.preload) or 'nothing'}")
        if self._failure:
            raise WorkerError(self._failure, read_tail(self._process.log))
        number = next(self._process.numbers)
        name = f"{lane}-{number}"
        path = self.run_dir / f"{name.replace('/', '_')}.stderr"
        order: dict[str, Any] = {"op": "fork", "id": number, "env": dict(env or {}), "nice": nice}
        order["cpus"] = None if cpus is None else list(cpus)
        with path.open("ab") as stderr:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            worker = self._workers[number] = Worker(self, number, name, ours, path, stderr.tell(), lasting)
            try:
                with theirs:
                    await self.order(order, [theirs.fileno(), stderr.fileno()])
                await self._answered(worker.forked, f"fork {name}")
            except BaseException:
                await worker.kill(CANCEL_S)
                raise
        if not worker.pid:
            raise WorkerError(f"{name} did not start: {worker.how_ended}", read_tail(self._process.log))
        return worker

    async def _answered(self, event: anyio.Event, what: str) -> None:
        """Wait until the server has done what it was to do. Raises `WorkerError` where it hangs."""
        deadline = Deadline(self._start_timeout_s)
        try:
            while not event.is_set():
                await deadline.wait(event.wait)
        except TimeoutError:
            raise WorkerError(
                f"the fork server (process {self._process.pid}) did not {what} within {self._start_timeout_s:g} s: it "
                "hangs, or was stopped; look for a file system that does not answer, and for SIGSTOP",
                read_tail(self._process.log),
            ) from None

    @property
    def lasting(self) -> Worker | None:
        """The worker that the run before left here."""
        return next((worker for worker in self._workers.values() if worker.lasting), None)

    @property
    def facts(self) -> dict[Any, Any]:
        """What runs learned with this process and the next may use."""
        return self._process.facts

    def pids(self) -> list[int]:
        """Return the pids, which are the process groups too, of the server and of the workers that live."""
        server = [self._process.pid] if self._running and self._process.returncode is None else []
        return server + [worker.pid for worker in self._workers.values() if worker.pid]

    def _start(self) -> None:
        """Start the server's process, which goes on by itself, or attach to one."""
        self._ready = anyio.Event()
        self._listening = anyio.CancelScope(shield=True)
        self._process = self._given or ServerProcess(self.preload, self.run_dir, env=self.env)
        self._control = self._process.control
        if self._process.preload_s is not None:
            self.preload_s = self._process.preload_s
            self._ready.set()
        for left in self._process.lasting:
            self._workers[left.number] = Worker.left(self, left)
        self._process.lasting = []
        self._running = True

    async def _detach(self) -> bool:
        """Leave the server parked for the next run; False where it is in no state for that."""
        if self._park is None or self._failure or not self._ready.is_set():
            return False
        async with anyio.create_task_group() as tasks:
            for worker in list(self._workers.values()):
                if not worker.lasting or worker.busy:
                    tasks.start_soon(worker.kill)
        staying = list(self._workers.values())
        if not all(worker.lasting for worker in staying) or self._failure or self._process.returncode is not None:
            return False
        kept = {worker.stderr for worker in staying}
        for stderr in set(self.run_dir.glob("*.stderr")) - kept:  # the next run's workers have other names
            stderr.unlink(missing_ok=True)
        self._process.lasting = [worker.leave() for worker in staying]
        self._running = False
        self._listening.cancel()
        self._park(self._process)
        return True

    async def order(self, message: dict[str, Any], fds: list[int]) -> None:
        """Send the server a message, with descriptors. Raises `WorkerError` where it was closed."""
        data = json.dumps(message).encode()
        while self._running:
            try:
                socket.send_fds(self._control, [data], fds)
                return
            except BlockingIOError:
                await anyio.wait_writable(self._control)
            except (BrokenPipeError, ConnectionResetError):
                return  # the server is gone, which `_listen` tells everyone
        raise WorkerError("the fork server was closed")

    def forget(self, number: int) -> None:
        """Learn from a worker that it has ended."""
        self._workers.pop(number, None)

    async def _listen(self) -> None:
        """Hear the server out until it ends. Shielded: the cleanup after a cancellation needs the exits reported."""
        with self._listening:
            while data := await self._hear():
                message = json.loads(data)
                worker = self._workers.get(message.get("id", -1))
                if message["op"] == "ready":
                    self.preload_s = self._process.preload_s = message["seconds"]
                    if message["error"]:
                        self._failure = f"preloading {', '.join(self.preload)} failed: {message['error']}"
                    self._ready.set()
                elif message["op"] == "forked" and worker:
                    worker.pid = message["pid"]
                    worker.forked.set()
                elif message["op"] == "exited" and worker:
                    worker.told_ended(message["how"])
            self._hammer()
            with anyio.move_on_after(GRACE_S):
                await self._process.wait()
            while_doing = "" if self._ready.is_set() else f" while importing {', '.join(self.preload)}"
            self._lost(f"the fork server ended{while_doing}: {describe(self._process.returncode)}")

    async def _hear(self) -> bytes:
        while True:
            try:
                return self._control.recv(CONTROL_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._control)
            except OSError:
                return b""

    def _lost(self, why: str) -> None:
        """Tell everyone who waits that the server is no more."""
        self._failure = self._failure or why
        self._ready.set()
        for worker in list(self._workers.values()):
            worker.told_ended(why)

    def _hammer(self) -> None:
        """SIGKILL everything without the server's help.

        Closing the lifeline is the kernel's part, and free of races; the rest is for the case that a process forked
        off this program holds the lifeline too, and for what left its worker's group.
        """
        workers = [worker.pid for worker in self._workers.values() if worker.pid]
        below = descendants([*workers, *([self._process.pid] if self._process.returncode is None else [])])
        self._process.hang_up()
        for pid in workers:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    async def _stop(self) -> None:
        """End every process: first in order, so that all are reaped, then with the hammer. Shielded and bounded."""
        with anyio.CancelScope(shield=True):
            try:
                if self._ready.is_set():  # still importing, it could not listen
                    with suppress(OSError):
                        self._control.shutdown(socket.SHUT_WR)
                    with anyio.move_on_after(GRACE_S):
                        await self._process.wait()
            finally:  # also when asyncio's own cancellation, which knows no shields, comes in between
                self._hammer()
                try:
                    with anyio.move_on_after(HAMMER_S):
                        await self._process.wait()
                finally:
                    self._process.reap()
                    self._lost("the fork server was closed")
                    self._running = False
                    self._listening.cancel()
                    anyio.notify_closing(self._control)
                    self._control.close()
