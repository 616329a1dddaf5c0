"""Workers of a run on many nodes: each stands for a compile worker or a device of one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import anyio
import msgspec

from atune.errors import ServerLost, WorkerError
from atune.model.artifact import Artifact, Built, Failure, Lowered
from atune.model.device import DeviceInfo
from atune.model.jobs import A, BuildJob, FindJob, GroupFailed, Job, LowerJob, Started, StartJob
from atune.workers.cluster.nodes import Node, NodeLost, none_left


class Slot:
    """One compile worker of a node. Where other nodes were lost, several of the run's workers take turns at it."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.number = node, number
        self.users = 0
        """How many of the run's workers use it."""
        self.turn = anyio.Lock()


class ClusterCompileWorker:
    """One compile worker of a node; of another one, which repeats the job, once its node is lost.

    `slots`: those of all nodes. `stored`: what nodes' artifact stores had of lowered candidates, by index; the run's
    workers share it.
    """

    def __init__(self, name: str, slot: Slot, slots: Sequence[Slot], stored: dict[int, Artifact]) -> None:
        self.name, self._slot, self._slots, self._stored = name, slot, slots, stored
        slot.users += 1
        self.compiling = False

    async def run(self, job: Job[A]) -> A:
        answer: Any
        match job:
            case LowerJob():
                answer = await self._lower(job)
            case FindJob() if not job.lowered.blob:
                answer = self._stored.get(job.lowered.index)
            case BuildJob():
                answer = await self._build(job.group)
            case _:
                answer = await self._ask(job)
        return cast(A, answer)

    async def _lower(self, job: LowerJob) -> Lowered | Failure:
        """Lower a candidate. What its node's artifact store has is fetched at once, as the node may be lost later."""
        lowered = await self._ask(job)
        if isinstance(lowered, Failure) or lowered.blob:
            return lowered
        found = await self._ask(FindJob(lowered))
        if found is None:  # it was removed meanwhile, or its node was lost
            return await self._ask(LowerJob(job.candidate, anew=True))
        self._stored[lowered.index] = found
        return lowered

    async def _build(self, group: Sequence[Lowered]) -> list[Built] | GroupFailed:
        """Compile `group`; those that only a store has come from there."""
        answers: dict[int, Built] = {one.index: self._stored[one.index] for one in group if not one.blob}
        if fresh := tuple(lowered for lowered in group if lowered.blob):
            built = await self._ask(BuildJob(fresh))
            if isinstance(built, GroupFailed):
                return built
            answers.update((one.index, one) for one in built)
        return [answers[lowered.index] for lowered in group]

    async def _ask(self, job: Job[A]) -> A:
        """Ask the node. Raises what was raised there, and `MachineError` without a node."""
        while True:
            slot = self._living_slot()
            async with slot.turn:
                self.compiling = isinstance(job, BuildJob)
                try:
                    return await slot.node.ask(job, slot.number)
                except NodeLost:
                    continue
                finally:
                    self.compiling = False

    def _living_slot(self) -> Slot:
        if self._slot.node.lost:
            living = [slot for slot in self._slots if not slot.node.lost]
            if not living:
                raise none_left(dict.fromkeys(slot.node.lost for slot in self._slots))
            self._slot = min(living, key=lambda slot: slot.users)
            self._slot.users += 1
        return self._slot


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
