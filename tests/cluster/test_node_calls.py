"""Nodes as the engine's program sees them, over agents that a test scripts: silence, cancelled calls, their devices."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from atune.errors import MachineError, ServerLost, TargetError, WorkerError
from atune.model.artifact import Artifact, Lowered, Roles, StaticFacts
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo, Target
from atune.model.jobs import FinalJob, FindJob, LowerJob, MeasureJob, StartJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster import cluster_machine
from atune.workers.cluster.cluster_machine import (
    NO_NVCC,
    ClusterCompileWorker,
    ClusterDeviceWorker,
    ClusterMachine,
    Node,
    NodeLost,
    Opening,
    Reply,
    sendable,
)
from atune.workers.cluster.ray_cluster import NodeAgent
from atune.workers.messages import Discovery
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload, describe

pytestmark = pytest.mark.anyio
OUT = Roles(outputs=(1,))
WORK = FileRef("/nowhere.py", "WORK")
Answer = Callable[..., Awaitable[Reply]]


async def silence(*_: object) -> Reply:
    """Never answer."""
    await anyio.sleep_forever()
    raise AssertionError


class Scripted:
    """An agent that answers as `answer` does."""

    killed = False

    def __init__(self, answer: Answer, name: str = "node-0") -> None:
        self.answer, self.name = answer, name

    async def ask(self, what: str, *given: Any) -> Reply:
        return await self.answer(what, *given)

    def kill(self) -> None:
        self.killed = True


def opening() -> Opening:
    settings = CompileSettings(), BenchmarkSettings()
    return Opening(WORK, "c", ("cpu",), *settings, cores=1)


async def test_a_worker_takes_the_next_call_once_its_cancelled_one_has_ended() -> None:
    """The engine waits only for a while for a cancelled call, which hopeless compiles are."""
    agent, order = NodeAgent(opening()), list[str]()
    may_end, begun = anyio.Event(), anyio.Event()

    class Compiler:
        async def run(self, job: Any) -> None:
            order.append("begins")
            if begun.is_set():
                return
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await may_end.wait()
                order.append("has ended")

    agent._compilers = [Compiler()]  # type: ignore[list-item]
    lowered = Lowered(0, "c", "", (), StaticFacts(), 0.0, b"")
    async with anyio.create_task_group() as tasks, anyio.create_task_group() as cancelled:
        cancelled.start_soon(agent.answer, "run", FindJob(lowered), 0, {})
        await begun.wait()
        cancelled.cancel_scope.cancel()
        tasks.start_soon(agent.answer, "run", FindJob(lowered), 0, {})
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
        before = list(order)
        may_end.set()
    assert before == ["begins"] and order == ["begins", "has ended", "begins"]


def node_of(answer: Answer, lost: list[str] | None = None) -> Node:
    return Node(Scripted(answer), "", lambda node: lost.append(node.lost) if lost is not None else None)


async def test_a_node_whose_disk_is_full_is_lost_and_not_the_run() -> None:
    async def answer(*_: object) -> Reply:
        return Reply(error=MachineError("the disk is full"))

    node = node_of(answer)
    with pytest.raises(MachineError, match=r"every node was lost: node node-0 was lost: the disk is full\. "):
        await ClusterCompileWorker(0, [(node, 0)]).run(LowerJob(Candidate(0, "0", {})))
    with pytest.raises(NodeLost, match="the disk is full"):
        await node.ask("notices")


async def test_a_node_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_machine, "STALL_S", 0.2)
    lost = list[str]()
    node = node_of(silence, lost)
    with anyio.fail_after(10):
        await node.watch(lambda message: None)
    assert lost == ["node node-0 was lost: it did not answer for 0.2 s"] and node.agent.killed  # type: ignore[attr-defined]


ARTIFACT = Artifact(index=0, path="", symbol="main", params=(), target="c")


@pytest.mark.parametrize(
    ("job", "error"),
    [(MeasureJob(ARTIFACT, OUT), ServerLost), (FinalJob((), OUT, 1), ServerLost), (StartJob(), WorkerError)],
)
async def test_a_lost_node_is_no_doing_of_its_candidate(job: Any, error: type[WorkerError]) -> None:
    """Nor is it the second time that the candidate's own process is lost, which would count against it."""
    node = node_of(silence)
    node.lose("gone")
    with pytest.raises(error, match="node node-0 was lost: gone") as raised:
        await ClusterDeviceWorker(node, DeviceInfo("cpu", "EPYC")).run(job)
    assert type(raised.value) is error


# Which devices measure: those of one model; and all nodes compile

SM_90, CPU = Target("cuda", "sm_90a"), Target("c")
NO_GPU, NO_GCC = TargetError("target cuda: there is no CUDA GPU"), TargetError("g++ is missing")


def kernel(x: int) -> None:
    """What these nodes describe."""


def posing(found: Discovery | TargetError, nvcc: bool) -> Answer:
    """Answer as a node that has `found`, and compiles for others if it has `nvcc`."""

    async def answer(what: str, *given: Any) -> Reply:
        if what == "notices":
            return await silence()
        if what == "describe":
            return Reply(describe(Workload(kernel, [{"x": 1}]), "work"))
        if len(given) > 1:
            assert given[1:] == ("sm_90a", ())
            return Reply((Discovery(SM_90, (), nvcc=nvcc), 1))
        return Reply(error=sendable(found)) if isinstance(found, TargetError) else Reply((found, 1))

    return answer


def node(target: Target, *models: str) -> Discovery:
    return Discovery(target, tuple(DeviceInfo(id=str(number), name=model) for number, model in enumerate(models)))


async def found_by(*answers: Discovery | TargetError, nvcc: bool = True) -> tuple[list[str], list[str]]:
    """Return the devices and the warnings of a run on nodes that give these answers."""

    @asynccontextmanager
    async def connect(opening: Opening) -> AsyncGenerator[Any, None]:
        yield [Scripted(posing(answer, nvcc), f"node-{number}") for number, answer in enumerate(answers)], []

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
    with pytest.raises(TargetError, match="there is no CUDA GPU"):
        await found_by(NO_GPU, NO_GPU)
    with pytest.raises(TargetError, match="cannot be compared: NVIDIA H100, NVIDIA H200"):
        await found_by(node(SM_90, "NVIDIA H100"), node(SM_90, "NVIDIA H200"), node(SM_90, "NVIDIA H200"))
