"""The agent on a node: runs the stages of this machine for an engine elsewhere.

Everything that may crash or hang is a process of the node's own fork server. So deadlines are kept here, whatever the
network does, and nothing outlives the agent: the fork server ends with the process that it belongs to.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from atune.model.jobs import BuildJob, Job
from atune.version import installed_versions
from atune.workers.cluster.libraries import Shelf
from atune.workers.cluster.messages import (
    Answer,
    DescribeJob,
    DiscoverJob,
    NeighboursJob,
    NoticesJob,
    Opening,
    PlanJob,
    Question,
    Reply,
    raised,
)
from atune.workers.local.compile_worker import LocalCompileWorker
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workers.local.machine import LocalMachine

NOTICE_S = 5.0
"""Seconds after which an agent that has nothing to say answers all the same: so the engine knows that it lives."""

LEFT_S = 40.0
"""Seconds without a question after which an agent counts as left. The engine asks for notices all the time, and has
given the node up by then."""
FIRST_S = 120.0
"""The same before the first question, which comes once every node's agent has started or was given up."""


def versions_here() -> dict[str, str]:
    """Return the versions that all nodes of a run must share."""
    return {"Python": platform.python_version().rpartition(".")[0], **installed_versions()}


class NodeAgent(anyio.AsyncContextManagerMixin):
    """The stages of one node. Entering starts them, leaving kills every process."""

    def __init__(self, opening: bytes) -> None:
        self._opening = msgspec.msgpack.decode(opening, type=Opening)
        o = self._opening
        benchmark = msgspec.structs.replace(o.benchmark, mixed_devices=True)  # the run decides, for all nodes
        self._machine = LocalMachine(
            o.workload, target=o.target, devices=o.devices, compile=o.compile, benchmark=benchmark, cores=o.cores
        )
        self._compilers: list[LocalCompileWorker] = []
        self._devices: dict[str, LocalDeviceWorker] = {}
        self._calls: dict[int, tuple[anyio.CancelScope, anyio.Event]] = {}
        self._turns = defaultdict[int, anyio.Lock](anyio.Lock)
        """Held by each compile worker's call. A cancelled one may still be ending when the next arrives."""
        self._cancelled = set[int]()
        """Calls whose cancellation came and that were not running: they had ended, or are still to come."""
        self._shelf = Shelf()
        self._new: list[str] = []
        self._noticed, self._changed = anyio.Event(), anyio.Event()
        self._leaves = 0.0
        """When it counts as left unless it is asked before, by the event loop's clock."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[NodeAgent, None]:
        async with self._machine.open(self._notice, self._wake):
            self._shelf.run_dir = self._machine.run_dir
            yield self

    async def call(self, number: int, question: bytes) -> bytes:
        """Answer a question; `cancel` with its number ends it, and what it started. Raises nothing of its own."""
        self._leaves = anyio.current_time() + LEFT_S
        scope, ended = anyio.CancelScope(), anyio.Event()
        self._calls[number] = scope, ended
        reply: Reply = Answer(b"")
        if number in self._cancelled:  # a short message may overtake a long one
            scope.cancel()
        try:
            with scope:
                reply = await self._reply(msgspec.msgpack.decode(question, type=Question))
        finally:
            del self._calls[number]
            ended.set()
        return msgspec.msgpack.encode(reply)

    async def left(self) -> None:
        """Return once nobody has asked for `LEFT_S`: the engine's host is gone, or cannot be reached."""
        self._leaves = anyio.current_time() + FIRST_S
        while (rest_s := self._leaves - anyio.current_time()) > 0:
            await anyio.sleep(min(rest_s, LEFT_S))

    async def cancel(self, number: int) -> None:
        """End a call, and return once what it started is gone."""
        if (call := self._calls.get(number)) is None:
            self._cancelled.add(number)
        else:
            call[0].cancel()
            await call[1].wait()

    async def _reply(self, question: Question) -> Reply:
        device = self._devices.get(str(question.worker))
        try:
            job: Job[Any] = await self._shelf.unpacked(question.job, question.libraries)
            answer, libraries = await self._shelf.packed(await self.run(job, question.worker))
            return Answer(msgspec.msgpack.encode(answer), libraries, _is_alive(device))
        except Exception as error:
            return raised(error, alive=_is_alive(device))

    async def run(self, job: Job[Any], worker: int | str) -> Any:
        """Have a worker do `job`, or this node itself."""
        if worker == "":
            return await self._do(job)
        if isinstance(worker, str):
            return await self._devices[worker].run(job)
        async with self._turns[worker]:
            while isinstance(job, BuildJob) and self._machine.service.soon:  # building will be cheaper then
                await self._changed.wait()
            return await self._compilers[worker].run(job)

    async def _do(self, job: Job[Any]) -> Any:
        machine = self._machine
        match job:
            case DescribeJob():
                return await machine.describe(seed=job.seed)
            case NeighboursJob():
                return await machine.neighbours(job.configs)
            case DiscoverJob():
                machine.adopt(job.fingerprint)
                if job.target:
                    machine.target_text, machine.device_names = job.target, job.devices
                await machine.discover()
                return machine.found
            case PlanJob():
                return self._plan(job)
            case NoticesJob():
                return await self._notices()
        return None

    def _plan(self, job: PlanJob) -> int:
        machine = self._machine
        machine.use(job.accelerators, job.no_service)
        self._compilers = machine.compile_workers()
        self._devices = {device.info.id: device for device in machine.device_workers()}
        resting = machine.hints(measuring=len(self._devices)).resting  # a GPU's process needs a core while it measures
        return max(1, len(self._compilers) - resting)

    async def _notices(self) -> list[str]:
        with anyio.move_on_after(NOTICE_S):
            while not self._new:
                await self._noticed.wait()
        new, self._new = self._new, []
        return new

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _notice(self, message: str) -> None:
        self._new.append(message)
        self._noticed.set()
        self._noticed = anyio.Event()


def _is_alive(device: LocalDeviceWorker | None) -> bool:
    return device is not None and device.alive


class Actor:
    """What Ray runs on a node: an agent, entered in a task of its own. Ray calls its methods."""

    def __init__(self) -> None:
        self._agent: NodeAgent
        self._ended: asyncio.Task[None]

    async def versions(self) -> dict[str, str]:
        """Return the versions of this node that must be those of the engine's program."""
        return versions_here()

    async def open(self, opening: bytes) -> None:
        """Start the agent. Raises where its fork server cannot be started."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._ended = asyncio.create_task(self._serve(opening, opened))
        await opened

    async def _serve(self, opening: bytes, opened: asyncio.Future[None]) -> None:
        """Run the agent until the engine ends it. End this process if it is left, or fails: then the node is lost."""
        try:
            async with NodeAgent(opening) as self._agent:
                opened.set_result(None)
                ends = [asyncio.ensure_future(end) for end in (self._leave.wait(), self._agent.left())]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
                return
            if self._leave.is_set():
                raise
        if not self._leave.is_set():
            os._exit(1)

    async def call(self, number: int, question: bytes) -> bytes:
        """Have the agent answer a question."""
        return await self._agent.call(number, question)

    async def cancel(self, number: int) -> None:
        """End a call."""
        await self._agent.cancel(number)

    async def close(self) -> None:
        """End the agent in order."""
        self._leave.set()
        await self._ended
