"""A node as the engine's program sees it: jobs for its agent, its loss, and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

import anyio
import msgspec

from atune.engine.run_state import background
from atune.errors import AtuneError, MachineError, ServerLost, WorkerError
from atune.model.device import DeviceInfo
from atune.model.jobs import A, Job, Started, StartJob
from atune.workers.cluster.messages import DiscoverJob, Library, NoticesJob, Reply, Shelf
from atune.workers.processes.messages import Discovery
from atune.workers.system.locks import Deadline

STALL_S = 30.0
"""Seconds without a sign of life after which a node counts as lost; its agent gives one every `agent.NOTICE_S`."""


class NodeLost(AtuneError):
    """The node ended, or cannot be reached, before it answered. Its open calls must be repeated."""


def none_left(causes: Iterable[str]) -> MachineError:
    """Return the error of a run that has lost all its nodes: why, and how to go on."""
    return MachineError(
        f"every node was lost: {'; '.join(causes)}. What was measured stays; `atune resume JOURNAL` continues the run"
    )


class Agent(Protocol):
    """The way to one node's agent."""

    name: str
    """The node's name, which no other node of the run has."""

    async def ask(self, job: Job[Any], worker: int | str, libraries: Sequence[Library]) -> Reply:
        """Return the agent's reply. Raises `NodeLost`. Cancelling it ends the call there, and what that started."""
        ...

    def kill(self) -> None:
        """End the agent, with all its processes, without waiting. Open calls raise `NodeLost` at once."""
        ...


class Node:
    """One node of a run. `found` and `compilers`: what it has, once it was asked."""

    def __init__(self, agent: Agent, shelf: Shelf, on_loss: Callable[[Node], None]) -> None:
        self.agent, self.name = agent, agent.name
        self.lost = ""
        """Why it is used no more; empty while it is."""
        self.found: Discovery
        self.compilers = 0
        self._shelf, self._on_loss = shelf, on_loss
        self._sent: set[str] = set()
        """Digests of the libraries that it has."""
        self._alive: dict[str, bool] = {}
        """Whether each device's process ran after its last job."""
        self._silence = Deadline(STALL_S)

    async def ask(self, job: Job[A], worker: int | str = "") -> A:
        """Have the agent do `job`. Raises `NodeLost`, and what was raised there."""
        if self.lost:
            raise NodeLost(self.lost)
        packed, libraries = await self._shelf.packed(job, self._sent)
        try:
            reply = await self.agent.ask(packed, worker, libraries)
        except NodeLost as error:
            self.lose(str(error))
            raise NodeLost(self.lost) from error
        self._alive[str(worker)] = reply.alive
        if isinstance(reply.error, MachineError):  # it lacks disk or memory, which other nodes may have
            self.lose(str(reply.error))
            raise NodeLost(self.lost) from reply.error
        if reply.error is not None:  # perhaps of writing the libraries: they are sent again
            raise reply.error
        self._sent |= {library.digest for library in (*libraries, *reply.libraries)}
        return await self._shelf.unpacked(cast(A, reply.answer), reply.libraries)

    async def discover(self, job: DiscoverJob) -> None:
        """Have the agent find what the node has for the run."""
        answer = await self.ask(job)
        self.found, self.compilers = answer.discovery, answer.compilers

    async def watch(self, notice: Callable[[str], None]) -> None:
        """Pass on the agent's messages, until the node is lost, also by keeping silent for `STALL_S`.

        Time in which this program is stopped does not count.
        """
        async with background() as tasks:
            tasks.start_soon(self._listen, notice)
            while not self.lost:
                try:
                    await self._silence.wait(anyio.sleep_forever)
                except TimeoutError:
                    self.lose(f"it did not answer for {STALL_S:g} s")

    async def _listen(self, notice: Callable[[str], None]) -> None:
        with suppress(NodeLost):
            while True:
                self._silence = Deadline(STALL_S)
                for message in await self.ask(NoticesJob()):
                    notice(f"{self.name}: {message}")

    def lose(self, why: str) -> None:
        """Use the node no more. Twice is fine."""
        if not self.lost:
            self.lost = f"node {self.name} was lost: {why}"
            self.agent.kill()
            self._on_loss(self)

    def alive(self, device: str) -> bool:
        """Tell whether a device's process ran after its last job."""
        return not self.lost and self._alive.get(device, False)

    def named(self, info: DeviceInfo) -> DeviceInfo:
        """Return a device of the node under its name in the run, ``NODE/ID``."""
        return msgspec.structs.replace(info, id=f"{self.name}/{info.id}")


class Slot:
    """One compile worker of a node. Where other nodes were lost, several of the run's workers take turns at it."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.number = node, number
        self.turn = anyio.Lock()


class ClusterCompileWorker:
    """One compile worker of a node; of another one, which repeats the job, once its node is lost.

    `slots`: those of all nodes.
    """

    def __init__(self, name: str, slot: Slot, slots: Sequence[Slot]) -> None:
        self.name, self._slot, self._slots = name, slot, slots

    async def run(self, job: Job[A]) -> A:
        """Have the node do `job`. Raises what was raised there, and `MachineError` without a node."""
        while True:
            slot = self._living_slot()
            async with slot.turn:
                try:
                    return await slot.node.ask(job, slot.number)
                except NodeLost:
                    continue

    def _living_slot(self) -> Slot:
        if not self._slot.node.lost:
            return self._slot
        living = [slot for slot in self._slots if not slot.node.lost]
        if not living:
            raise none_left(dict.fromkeys(slot.node.lost for slot in self._slots))
        return min(living, key=lambda slot: (slot.turn.locked(), slot.turn.statistics().tasks_waiting))


class ClusterDeviceWorker:
    """One device of a node. `info` is as the node knows it; the run calls it ``NODE/ID``."""

    def __init__(self, node: Node, info: DeviceInfo) -> None:
        self.node, self._id = node, info.id
        self.info = node.named(info)
        self.name = self.info.id

    @property
    def alive(self) -> bool:
        return self.node.alive(self._id)

    async def run(self, job: Job[A]) -> A:
        """Have the device's process do `job`. If its node is lost, the candidate has no part in that."""
        try:
            answer: Any = await self.node.ask(job, self._id)
        except NodeLost as error:
            lost = WorkerError if isinstance(job, StartJob) else ServerLost
            raise lost(str(error)) from error
        if isinstance(answer, Started):
            self.info = self.node.named(answer.device)
            answer = msgspec.structs.replace(answer, device=self.info)
        return cast(A, answer)
