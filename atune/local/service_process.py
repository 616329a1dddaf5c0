"""The compile service's process: started, or taken over from the previous run."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping

import anyio
import msgspec

from atune.errors import WorkerError
from atune.local.entry_points import SERVICE_HEADER, SERVICE_LISTEN, SERVICE_PRELOAD
from atune.local.fork_servers import server_env
from atune.processes.messages import ServiceReady
from atune.processes.pool import ForkServer
from atune.processes.server import ForkServerProcess, services
from atune.processes.worker import Worker
from atune.system.folders import server_folder

PREPARE_TIMEOUT_S = 120.0
LEAVE_S = 1.0
PARSED = "parsed"
"""Key of the fact whether headers are parsed. The next run gets it with the process."""


class ServiceProcess:
    """One process of the service, forked by a server of its own, which imports almost nothing.

    `kind`: properties that another run must share to take the process over. `kept`: the process that the previous
    run left, if any. `arch`: a new process parses headers for it before a candidate is known. An empty `arch` means
    that of this machine's GPU; None waits for the candidate. Without `early` nothing is parsed ahead, and a shared
    process only tells whether it has the headers. `env`: the process's additional environment. `nice`: added to its
    niceness.
    """

    def __init__(
        self,
        kind: tuple[object, ...],
        *,
        kept: ForkServerProcess | None,
        arch: str | None,
        early: bool = True,
        env: Mapping[str, str],
        nice: int,
    ) -> None:
        self.pid = 0
        """The process; 0 before it starts."""
        self._kind, self._kept, self._arch, self._env, self._nice = kind, kept, arch, env, nice
        self._early = early
        self._request = b""
        self._answered = False
        self._idle = False
        """Whether the process is in no call. Only then can the next run take it over."""
        self._wanted, self._leaving, self._left = anyio.Event(), anyio.Event(), anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self, *, anew: Callable[[], None], answered: Callable[[ServiceReady], None]) -> None:
        """Run the process until `leave` or `give_up`.

        `anew` is called if the previous run's process has ended and another one starts. `answered` gets the answer to
        `listen`. Raises `WorkerError`, `OSError` or `MsgspecError` if the process ends early.
        """
        kept, self._kept = self._kept, None
        try:
            with self._scope:
                try:
                    await self._attach(kept, answered)
                except (WorkerError, OSError):
                    if not kept or self._answered or self._leaving.is_set():
                        raise
                    self.pid = 0
                    anew()
                    if not self._early:
                        await _first(self._wanted.wait, self._leaving.wait)
                    await self._attach(None, answered)
        finally:
            self._left.set()

    def listen(self, request: bytes) -> None:
        """Have the process compile for the run, after its current parsing. `request`: the payload of ``listen``."""
        self._request = request
        self._wanted.set()

    def give_up(self) -> None:
        """Leave the process to the next run, or end it if it is in a call."""
        if self._idle or not self.pid:
            self._leaving.set()
        else:
            self._scope.cancel()

    async def leave(self) -> None:
        """Leave the process to the next run, if it is in no call."""
        if self._idle or self._leaving.is_set():
            self._leaving.set()
            with anyio.move_on_after(LEAVE_S):
                await self._left.wait()

    def close(self) -> None:
        """End the process that the previous run left, if `run` never took it over."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.destroy()

    async def _attach(self, kept: ForkServerProcess | None, answered: Callable[[ServiceReady], None]) -> None:
        if kept is None and self._leaving.is_set():
            return
        process = kept or ForkServerProcess(SERVICE_PRELOAD, *server_folder(), env=server_env())
        async with ForkServer(process=process, park=functools.partial(_park, self._kind)) as server:
            env = {**self._env, "TMPDIR": str(process.folder)}  # it may outlive the run
            worker = server.lasting or await server.spawn("service", env=env, nice=self._nice, lasting=True)
            self.pid = worker.pid
            arch = self._arch if self._early and not kept else None
            await self._serve(worker, arch, server.facts, answered)

    async def _serve(
        self, worker: Worker, arch: str | None, facts: dict[str, bool], answered: Callable[[ServiceReady], None]
    ) -> None:
        made_s = 0.0
        if arch is not None and not self._leaving.is_set():
            parsed = await _call(worker, SERVICE_HEADER, msgspec.msgpack.encode(arch))
            made_s, facts[PARSED] = parsed.header_s, parsed.ok
        if not await self._idle_until(self._wanted, worker):
            return
        answer = await _call(worker, SERVICE_LISTEN, self._request)
        facts[PARSED] = answer.ok
        self._answered = True
        answered(msgspec.structs.replace(answer, header_s=answer.header_s or made_s))
        if answer.ok:
            await self._idle_until(anyio.Event(), worker)

    async def _idle_until(self, event: anyio.Event, worker: Worker) -> bool:
        """Wait for `event`. Returns false if the run leaves earlier. Raises `WorkerError` if the process ends."""
        self._idle = True
        try:
            await _first(event.wait, self._leaving.wait, worker.ended)
        finally:
            self._idle = False
        if not worker.alive:
            raise await worker.ended()
        return not self._leaving.is_set()


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait until one of `waits` returns, and cancel the others."""

    async def until(wait: Callable[[], Awaitable[object]]) -> None:
        await wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for wait in waits:
            tasks.start_soon(until, wait)


async def _call(worker: Worker, entry: str, request: bytes) -> ServiceReady:
    return msgspec.msgpack.decode(await worker.call(entry, request, PREPARE_TIMEOUT_S), type=ServiceReady)


def _park(kind: tuple[object, ...], process: ForkServerProcess) -> None:
    if process.facts.get(PARSED) and process.lasting:
        services.park(kind, process)
    else:
        process.destroy()
