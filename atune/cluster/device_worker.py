"""A device on some node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atune.cluster.messages import Finalists, Measuring, Timed
from atune.cluster.nodes import Node, NodeLost
from atune.errors import ServerLost, WorkerError
from atune.model.artifact import Artifact, Failure, KernelParam
from atune.model.device import DeviceInfo
from atune.model.measurement import FinalEntry, Measurement, Timing


class ClusterDeviceWorker:
    """One device of a node. `info` is as the node knows it; the run calls it ``NODE/ID``."""

    def __init__(self, node: Node, info: DeviceInfo) -> None:
        self.node, self._id = node, info.id
        self.info = named(node, info)
        self.name = self.info.id

    @property
    def alive(self) -> bool:
        return self.node.state(self._id).alive

    @property
    def took_over(self) -> bool:
        return self.node.state(self._id).took_over

    async def start(self) -> DeviceInfo:
        try:
            info: DeviceInfo = await self.node.ask("start", None, self._id)
        except NodeLost as error:
            raise WorkerError(str(error)) from error
        self.info = named(self.node, info)
        return self.info

    async def prepare(self, params: Sequence[KernelParam]) -> Timing | None:
        timing: Timing | None = await self._ask("prepare", tuple(params))
        return timing

    async def measure(self, artifact: Artifact, best_ms: float | None = None) -> Measurement | Failure:
        answer: Measurement | Failure = await self._ask("measure", Measuring(artifact, best_ms))
        return answer

    async def final(
        self, artifacts: Sequence[Artifact], rounds: int, with_reference: bool = True
    ) -> tuple[list[FinalEntry | Failure], Timing | None]:
        timed: Timed = await self._ask("final", Finalists(tuple(artifacts), rounds, with_reference))
        pairs = zip(timed.entries, timed.failures, strict=True)
        return [one for pair in pairs for one in pair if one is not None], timed.reference

    async def outputs(self, artifact: Artifact) -> list[bytes]:
        """Run `artifact` once and return its outputs' bytes: for tests, as `LocalDeviceWorker.outputs`."""
        outputs: list[bytes] = await self._ask("outputs", artifact)
        return outputs

    async def _ask(self, entry: str, body: Any) -> Any:
        """Ask the device's process. Raises `ServerLost` where its node is lost: the candidate has no part in that."""
        try:
            return await self.node.ask(entry, body, self._id)
        except NodeLost as error:
            raise ServerLost(str(error)) from error


def named(node: Node, info: DeviceInfo) -> DeviceInfo:
    """Return a node's device under its name in the run."""
    return msgspec.structs.replace(info, id=f"{node.name}/{info.id}")
