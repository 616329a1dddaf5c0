"""The agent on a node: runs the stages of this machine for an engine elsewhere.

Everything that may crash or hang is a process of the node's own fork server. So deadlines are kept here, whatever the
network does, and nothing outlives the agent: the fork server ends with the process that it belongs to.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from atune.model.jobs import Job, LowerJob
from atune.version import installed_versions
from atune.workers.cluster.cluster_machine import Library, Opening, Reply, arrived, known, libraries_of
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine
from atune.workers.messages import Discovery
from atune.workload.workload import WorkloadSpec

NOTICE_S = 5.0
"""Seconds after which an agent without messages answers all the same: so the engine knows that it lives."""


def versions_here() -> dict[str, str]:
    """Return the versions that all nodes of a run must share."""
    return {"Python": platform.python_version().rpartition(".")[0], **installed_versions()}


class NodeAgent(anyio.AsyncContextManagerMixin):
    """The stages of one node. Entering starts them, leaving kills every process."""

    def __init__(self, opening: Opening) -> None:
        o = opening
        self._machine = LocalMachine(
            o.workload, target=o.target, devices=o.devices, compile=o.compile, benchmark=o.benchmark, cores=o.cores
        )
        self._compilers: list[LocalCompileWorker] = []
        self._devices: dict[str, LocalDeviceWorker] = {}
        self._turns = defaultdict[int | str, anyio.Lock](anyio.Lock)
        """Held by each worker's job. A cancelled one may still be ending when the next arrives."""
        self._notices: list[str] = []
        self._noticed = anyio.Event()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[NodeAgent, None]:
        async with self._machine.open(self._notice):
            yield self

    async def answer(self, what: str, *given: Any) -> Reply:
        """Call the method `what`. Cancelling it ends what that started. Raises nothing of its own."""
        try:
            answer = await getattr(self, what)(*given)
            reply = Reply(answer, await libraries_of(answer))
        except Exception as error:
            reply = Reply(error=known(error))
        return msgspec.structs.replace(reply, alive=tuple(name for name, one in self._devices.items() if one.alive))

    async def describe(self, seed: int) -> WorkloadSpec:
        return await self._machine.describe(seed=seed)

    async def discover(
        self, fingerprint: str, target: str = "", devices: tuple[str, ...] = ()
    ) -> tuple[Discovery, int]:
        """Find the node's devices, make its workers, and return the number of those that compile.

        `target`: the run's, with which only `devices` take part; empty: as in `Opening`. Workers that load work of
        another `fingerprint` are refused.
        """
        machine = self._machine
        machine.workers.loaded_as = fingerprint
        if target:
            machine.target_text, machine.device_names = target, devices
        await machine.discover()
        self._compilers = machine.compile_workers()
        self._devices = {device.info.id: device for device in machine.device_workers()}
        return machine.found, len(self._compilers)

    async def notices(self) -> list[str]:
        """Return messages for the user, once there are some; after `NOTICE_S` at the latest."""
        with anyio.move_on_after(NOTICE_S):
            await self._noticed.wait()
        notices, self._notices, self._noticed = self._notices, [], anyio.Event()
        return notices

    async def run(self, job: Job[Any], worker: int | str, libraries: Mapping[str, Library]) -> Any:
        """Have a compile worker, by number, or a device, by id, do `job`, which came with `libraries`."""
        job = await arrived(job, libraries, self._machine.run_dir)
        async with self._turns[worker]:
            if isinstance(worker, str):
                return await self._devices[worker].run(job)
            if isinstance(job, LowerJob):  # another node may build it, so that its code must be in the answer
                job = msgspec.structs.replace(job, anew=True)
            return await self._compilers[worker].run(job)

    def _notice(self, message: str) -> None:
        self._notices.append(message)
        self._noticed.set()


class Actor:
    """The Ray actor of a node: an agent, entered in a task of its own. Ray calls its methods."""

    def __init__(self) -> None:
        self._agent: NodeAgent
        self._ended: asyncio.Task[None]

    async def versions(self) -> dict[str, str]:
        """Return the versions of this node that must be those of the engine's program."""
        return versions_here()

    async def open(self, opening: Opening) -> None:
        """Start the agent. Raises where its fork server cannot be started."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._ended = asyncio.create_task(self._serve(opening, opened))
        await opened

    async def _serve(self, opening: Opening, opened: asyncio.Future[None]) -> None:
        """Run the agent until the engine ends it. End this process if it fails or is left: the node is lost."""
        try:
            async with NodeAgent(opening) as self._agent:
                opened.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            elif self._leave.is_set():
                raise
            else:
                os._exit(1)

    async def call(self, *asked: Any) -> Reply:
        """Have the agent answer. Ray cancels this task; the answer's own ends first then, and in order."""
        scope = anyio.CancelScope()

        async def answer() -> Reply:
            with scope:
                return await self._agent.answer(*asked)
            return Reply()

        task = asyncio.create_task(answer())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            scope.cancel()
            await task
            raise

    async def close(self) -> None:
        self._leave.set()
        await self._ended
