"""How agents are started and ended on the nodes of a Ray cluster, over a stand-in for Ray."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fake_ray import FakeRay, Idle, in_place

from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster import ray_cluster
from atune.workers.cluster.cluster_machine import NodeLost, Opening
from atune.workers.cluster.ray_cluster import ray_agents
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.anyio
OPENING = Opening(FileRef("/nowhere.py", "NONE"), "c", (), CompileSettings(), BenchmarkSettings(), cores=0)


async def test_a_node_that_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "READY_S", 0.2)
    in_place(FakeRay(("a", "b"), busy=("b",)), monkeypatch)
    async with ray_agents(OPENING, address="auto") as (agents, left_out):
        assert [one.name for one in agents] == ["a"] and "did not start within 0.2 s" in left_out[0]


async def test_calls_of_a_lost_node_end_although_its_agent_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they asked for is done elsewhere then. The way to the node may hang for much longer."""
    ray = in_place(FakeRay((), busy=("b",), kill_s=0.3), monkeypatch)
    actor = ray.remote(ray_cluster.Actor).options(scheduling_strategy="b").remote()
    lost = ray_cluster.RayAgent(ray, actor, "b", local=True)

    async def ask() -> None:
        with pytest.raises(NodeLost, match="its agent was killed"):
            await lost.ask("notices")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            lost.kill()
    assert "killed b" not in ray.log


@pytest.mark.parametrize("busy", ["b", ""], ids=["its start is cancelled", "the run fails"])
async def test_all_nodes_are_killed_before_ray_is_left(busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill after that would have Ray join, or start, a cluster of its own accord."""
    ray = in_place(FakeRay(("a", "b"), busy=(busy,), kill_s=0.3), monkeypatch)
    with anyio.move_on_after(0.3) as scope, suppress(ZeroDivisionError):
        async with ray_agents(OPENING, address="auto"):
            raise ZeroDivisionError
    assert scope.cancelled_caught == bool(busy)
    assert sorted(ray.log[-3:-1]) == ["killed a", "killed b"] and ray.log[-1] == "shutdown"


async def test_an_agent_that_fails_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is lost then; otherwise it would answer for its dead workers, at the candidates' cost."""

    class Failing(Idle):
        @asynccontextmanager
        async def __asynccontextmanager__(self) -> AsyncGenerator[Any, None]:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fail)
                yield self

        async def _fail(self) -> None:
            await anyio.sleep(0.1)
            raise OSError("the disk is gone")

    ray = in_place(FakeRay(()), monkeypatch)
    monkeypatch.setattr(ray_cluster, "NodeAgent", Failing)
    actor = ray_cluster.Actor()
    await actor.open(OPENING)
    assert ray.log == []
    await anyio.sleep(0.3)
    assert ray.log == ["exit 1"]
