"""Which devices of a cluster measure: those of one model, and all nodes compile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from atune.errors import TargetError
from atune.model.device import DeviceInfo, Target
from atune.workers.cluster.cluster_machine import NO_NVCC, ClusterMachine, Opening, Reply, sendable
from atune.workers.messages import Discovery
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload, describe

pytestmark = pytest.mark.anyio
WORK = FileRef("/nowhere.py", "WORK")
SM_90, CPU = Target("cuda", "sm_90a"), Target("c")
NO_GPU, NO_GCC = TargetError("target cuda: no CUDA GPU is there"), TargetError("g++ is missing")


def kernel(x: int) -> None:
    """What these nodes describe."""


class Posing:
    """An agent of a node that has `found`, and compiles for others if it has `nvcc`."""

    killed = False

    def __init__(self, name: str, found: Discovery | TargetError, nvcc: bool) -> None:
        self.name, self.found, self.nvcc = name, found, nvcc

    async def ask(self, what: str, *given: Any) -> Reply:
        if what == "notices":
            await anyio.sleep_forever()
        if what == "describe":
            return Reply(describe(Workload(kernel, [{"x": 1}]), "work"))
        if len(given) > 1:
            assert given[1:] == ("sm_90a", ())
            return Reply((Discovery(SM_90, (), nvcc=self.nvcc), 1))
        return Reply(error=sendable(self.found)) if isinstance(self.found, TargetError) else Reply((self.found, 1))

    def kill(self) -> None:
        self.killed = True


def node(target: Target, *models: str) -> Discovery:
    return Discovery(target, tuple(DeviceInfo(id=str(number), name=model) for number, model in enumerate(models)))


async def found_by(*answers: Discovery | TargetError, nvcc: bool = True) -> tuple[list[str], list[str]]:
    """Return the devices and the warnings of a run on nodes that give these answers."""

    @asynccontextmanager
    async def connect(opening: Opening) -> AsyncGenerator[Any, None]:
        yield [Posing(f"node-{number}", answer, nvcc) for number, answer in enumerate(answers)], []

    machine, warned = ClusterMachine(connect, WORK), list[str]()
    async with machine.open(warned.append):
        _, devices = await machine.discover()
    return [device.id for device in devices], warned


@pytest.mark.parametrize(
    ("answers", "nvcc", "devices", "warning"),
    [
        ((node(SM_90, "H200", "H200"), node(SM_90, "H200")), True, ["node-0/0", "node-0/1", "node-1/0"], ""),
        ((node(CPU, "EPYC"), node(SM_90, "H200")), True, ["node-1/0"], ""),
        ((node(SM_90), node(SM_90)), True, [], ""),
        ((node(SM_90, "H200"), node(CPU, "EPYC")), False, ["node-0/0"], f"node node-1 is left out: {NO_NVCC}"),
        ((NO_GPU, node(SM_90, "H200")), True, ["node-1/0"], f"node node-0 only compiles: {NO_GPU}"),
        ((NO_GCC, node(CPU, "EPYC")), True, ["node-1/0"], f"node node-0 is left out: {NO_GCC}"),
    ],
    ids=["one model", "without a GPU a node compiles", "none measures", "without nvcc", "asked for a GPU", "no g++"],
)
async def test_what_nodes_measure_with(answers: Any, nvcc: bool, devices: list[str], warning: str) -> None:
    assert await found_by(*answers, nvcc=nvcc) == (devices, [warning] if warning else [])


async def test_a_run_without_devices_or_on_several_models_is_refused() -> None:
    with pytest.raises(TargetError, match="no CUDA GPU is there"):
        await found_by(NO_GPU, NO_GPU)
    with pytest.raises(TargetError, match="do not compare: NVIDIA H100, NVIDIA H200"):
        await found_by(node(SM_90, "NVIDIA H100"), node(SM_90, "NVIDIA H200"), node(SM_90, "NVIDIA H200"))
