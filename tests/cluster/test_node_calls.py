"""A node as the engine's program sees it, over agents that a test scripts: silence, libraries, cancelled calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from atune.errors import MachineError, ServerLost, WorkerError
from atune.model.artifact import Artifact, Lowered, Roles, StaticFacts
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo
from atune.model.jobs import FinalJob, FindJob, LowerJob, MeasureJob, StartJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster import cluster_machine
from atune.workers.cluster.cluster_machine import (
    ClusterCompileWorker,
    ClusterDeviceWorker,
    Node,
    NodeLost,
    Opening,
    Reply,
)
from atune.workers.cluster.ray_cluster import NodeAgent
from atune.workload.pickling import FileRef

OUT = Roles(outputs=(1,))

pytestmark = pytest.mark.anyio


class Scripted:
    """An agent that answers as `answer` does."""

    name, killed = "node-0", False

    def __init__(self, answer: Callable[[], Awaitable[Reply]]) -> None:
        self._answer = answer

    async def ask(self, what: str, *given: Any) -> Reply:
        return await self._answer()

    def kill(self) -> None:
        self.killed = True


def opening() -> Opening:
    settings = CompileSettings(), BenchmarkSettings()
    return Opening(FileRef("/nowhere.py", "NONE"), "c", ("cpu",), *settings, cores=1)


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


def node_of(answer: Callable[[], Awaitable[Reply]], lost: list[str] | None = None) -> Node:
    return Node(Scripted(answer), "", lambda node: lost.append(node.lost) if lost is not None else None)


async def test_a_node_whose_disk_is_full_is_lost_and_not_the_run() -> None:
    async def answer() -> Reply:
        return Reply(error=MachineError("the disk is full"))

    node = node_of(answer)
    with pytest.raises(MachineError, match=r"every node was lost: node node-0 was lost: the disk is full\. "):
        await ClusterCompileWorker(0, [(node, 0)]).run(LowerJob(Candidate(0, "0", {})))
    with pytest.raises(NodeLost, match="the disk is full"):
        await node.ask("notices")


async def test_a_node_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_machine, "STALL_S", 0.2)
    lost = list[str]()
    node = node_of(anyio.sleep_forever, lost)
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
    node = node_of(anyio.sleep_forever)
    node.lose("gone")
    with pytest.raises(error, match="node node-0 was lost: gone") as raised:
        await ClusterDeviceWorker(node, DeviceInfo("cpu", "EPYC")).run(job)
    assert type(raised.value) is error
