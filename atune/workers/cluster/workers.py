"""Workers of a run on many nodes: compile workers of whichever node is free, and each node's devices."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec

from atune.errors import ServerLost, WorkerError
from atune.model.artifact import Artifact, Built, Failure, Lowered
from atune.model.device import DeviceInfo
from atune.model.jobs import A, BuildJob, FindJob, GroupFailed, Job, LowerJob, Started, StartJob
from atune.workers.cluster.nodes import Node, NodeLost, none_left


class Slots:
    """The compile workers of all nodes. Nobody takes those of a lost node."""

    def __init__(self) -> None:
        self._free: dict[Node, deque[int]] = {}
        self._causes: list[str] = []
        """Why nodes were lost."""
        self._changed = anyio.Event()
        self.stored: dict[int, Artifact] = {}
        """What nodes' artifact stores had of candidates that they therefore did not lower anew, by index."""

    def add(self, node: Node) -> None:
        """Use the compile workers of a further node, unless it was lost meanwhile."""
        if not node.lost:
            self._free[node] = deque(range(node.compilers))

    def lose(self, node: Node) -> None:
        """Have nobody wait for a node."""
        self._free.pop(node, None)
        self._causes.append(node.lost)
        self._wake()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[tuple[Node, int], None]:
        """Take a compile worker of the node with most to spare. Raises `MachineError` if no node is left."""
        while not any(self._free.values()):
            if not self._free:
                raise none_left(self._causes)
            await self._changed.wait()
        node = max(self._free, key=lambda one: len(self._free[one]))
        number = self._free[node].popleft()
        try:
            yield node, number
        finally:
            if (free := self._free.get(node)) is not None:
                free.append(number)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class ClusterCompileWorker:
    """One compile worker, of whichever node. Another node repeats the jobs that a lost node was doing."""

    def __init__(self, name: str, slots: Slots) -> None:
        self.name, self._slots = name, slots
        self.compiling = False

    async def run(self, job: Job[A]) -> A:
        answer: Any
        match job:
            case LowerJob():
                answer = await self._lower(job)
            case FindJob() if not job.lowered.blob:
                answer = self._slots.stored.get(job.lowered.index)
            case BuildJob():
                answer = await self._build(job.group)
            case _:
                answer = await self._ask(job)
        return cast(A, answer)

    async def _lower(self, job: LowerJob) -> Lowered | Failure:
        """Lower a candidate. What its node's artifact store has is fetched at once, as the node may be lost later."""
        while True:
            async with self._slots.taken() as (node, number):
                try:
                    lowered = await node.ask(job, number)
                    if isinstance(lowered, Failure) or lowered.blob:
                        return lowered
                    found = await node.ask(FindJob(lowered), number)
                except NodeLost:
                    continue
            if found is not None:
                self._slots.stored[lowered.index] = found
                return lowered
            job = LowerJob(job.candidate, anew=True)  # it was removed meanwhile

    async def _build(self, group: Sequence[Lowered]) -> list[Built] | GroupFailed:
        """Compile `group`; those that only a store has come from there."""
        answers: dict[int, Built] = {one.index: self._slots.stored[one.index] for one in group if not one.blob}
        if fresh := tuple(lowered for lowered in group if lowered.blob):
            built = await self._ask(BuildJob(fresh))
            if isinstance(built, GroupFailed):
                return built
            answers.update((one.index, one) for one in built)
        return [answers[lowered.index] for lowered in group]

    async def _ask(self, job: Job[A]) -> A:
        """Ask a node. Raises what was raised there, and `MachineError` without a node."""
        while True:
            async with self._slots.taken() as (node, number):
                self.compiling = isinstance(job, BuildJob)
                try:
                    return await node.ask(job, number)
                except NodeLost:
                    continue
                finally:
                    self.compiling = False


class ClusterDeviceWorker:
    """One device of a node. `info` is as the node knows it; the run calls it ``NODE/ID``."""

    def __init__(self, node: Node, info: DeviceInfo) -> None:
        self.node, self._id = node, info.id
        self.info = named(node, info)
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
            self.info = named(self.node, answer.device)
            answer = msgspec.structs.replace(answer, device=self.info)
        return cast(A, answer)


def named(node: Node, info: DeviceInfo) -> DeviceInfo:
    """Return a node's device under its name in the run."""
    return msgspec.structs.replace(info, id=f"{node.name}/{info.id}")
