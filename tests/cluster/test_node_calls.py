"""A node as the engine's program sees it, over agents that a test scripts: silence, libraries, cancelled calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from atune.errors import MachineError, ServerLost, WorkerError
from atune.model.artifact import Artifact, Failure, Lowered, Roles, StaticFacts
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo
from atune.model.jobs import FindJob, LowerJob, MeasureJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster import nodes
from atune.workers.cluster.agent import NodeAgent
from atune.workers.cluster.messages import Library, NoticesJob, Opening, Reply, Shelf
from atune.workers.cluster.nodes import ClusterCompileWorker, ClusterDeviceWorker, Node, NodeLost, Slot
from atune.workload.pickling import FileRef

OUT = Roles(outputs=(1,))

pytestmark = pytest.mark.anyio


class Scripted:
    """An agent that answers as `answer` does, which gets the job's libraries."""

    name, killed = "node-0", False

    def __init__(self, answer: Callable[[Sequence[Library]], Awaitable[Reply]]) -> None:
        self._answer = answer

    async def ask(self, job: Any, worker: int | str, libraries: Sequence[Library]) -> Reply:
        return await self._answer(libraries)

    def kill(self) -> None:
        self.killed = True


async def test_a_program_that_was_stopped_loses_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the program is stopped nothing can be heard: the agents' answers are read once it goes on."""
    monkeypatch.setattr(nodes, "STALL_S", 0.6)
    calls, answered = 0, anyio.Event()

    async def answer(libraries: Sequence[Library]) -> Reply:
        nonlocal calls
        calls += 1
        if calls == 2:
            answered.set()
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()  # the deadline began
        time.sleep(1.3)  # all of this program stands still
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        return Reply([])

    node = Node(Scripted(answer), Shelf(), lambda node: answered.set())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.watch, lambda message: None)
        with anyio.fail_after(20):
            await answered.wait()
        assert node.lost == ""
        tasks.cancel_scope.cancel()


async def test_a_library_that_a_node_could_not_write_is_sent_again(tmp_path: Path) -> None:
    sent = list[int]()

    async def answer(libraries: Sequence[Library]) -> Reply:
        sent.append(len(libraries))
        failed = Failure(0, "fault", "it faults")
        return Reply(error=WorkerError("No space left on device")) if len(sent) == 1 else Reply(failed)

    node = Node(Scripted(answer), Shelf(), lambda node: None)
    path = tmp_path / "one.so"
    path.write_bytes(b"machine code")
    artifact = Artifact(index=0, path=str(path), symbol="main", params=(), target="c")
    with pytest.raises(WorkerError):
        await node.ask(MeasureJob(artifact, OUT), "cpu")
    for _ in range(2):
        await node.ask(MeasureJob(artifact, OUT), "cpu")
    assert sent == [1, 1, 0]


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
        cancelled.start_soon(agent.answer, FindJob(lowered), 0)
        await begun.wait()
        cancelled.cancel_scope.cancel()
        tasks.start_soon(agent.answer, FindJob(lowered), 0)
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
        before = list(order)
        may_end.set()
    assert before == ["begins"] and order == ["begins", "has ended", "begins"]


async def test_a_sign_of_life_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads may all wait for a slow disk, on the node or here. No node is lost by that."""
    monkeypatch.setattr("atune.workers.cluster.agent.NOTICE_S", 0.0)
    agent = NodeAgent(opening())

    async def answer(libraries: Sequence[Library]) -> Reply:
        return await agent.answer(NoticesJob(), "")

    node, freed = Node(Scripted(answer), Shelf(), lambda node: None), threading.Event()
    threads = anyio.to_thread.current_default_thread_limiter()
    monkeypatch.setattr(threads, "total_tokens", 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, freed.wait)
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(5):
                assert await node.ask(NoticesJob()) == []
        finally:
            freed.set()


async def test_a_node_whose_disk_is_full_is_lost_and_not_the_run() -> None:
    async def answer(libraries: Sequence[Library]) -> Reply:
        return Reply(error=MachineError("the disk is full"))

    node = Node(Scripted(answer), Shelf(), lambda node: None)
    slot = Slot(node, 0)
    with pytest.raises(MachineError, match=r"every node was lost: node node-0 was lost: the disk is full\. "):
        await ClusterCompileWorker("compile-0", slot, [slot]).run(LowerJob(Candidate(0, "0", {})))
    with pytest.raises(NodeLost, match="the disk is full"):
        await node.ask(NoticesJob())


async def test_a_lost_node_is_no_doing_of_its_candidate() -> None:
    """Nor is it the second time that the candidate's own process is lost, which would count against it."""
    node = Node(Scripted(lambda libraries: anyio.sleep_forever()), Shelf(), lambda node: None)
    node.lose("gone")
    worker = ClusterDeviceWorker(node, DeviceInfo("cpu", "EPYC"))
    artifact = Artifact(index=0, path="", symbol="main", params=(), target="c")
    with pytest.raises(ServerLost, match="node node-0 was lost: gone"):
        await worker.run(MeasureJob(artifact, OUT))
