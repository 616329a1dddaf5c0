"""A run on several nodes: what is lost with a node is done again, and nothing that was measured is lost."""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import TaskGroup
from processes import MARK, marked, new_mark, wait_until

from atune.errors import UsageError, WorkerError
from atune.frontends.resume import resume
from atune.frontends.tuner import run, tune
from atune.journal.events import CandidateMeasured, DeviceLost, Event, Warned
from atune.journal.reader import read
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster import ray_cluster
from atune.workers.cluster.cluster_machine import ClusterMachine, NodeLost, Opening, Reply, sendable
from atune.workers.cluster.ray_cluster import NodeAgent, versions_here
from atune.workers.server import parked
from atune.workers.waiting import background
from atune.workload.pickling import parse_file_ref

pytestmark = pytest.mark.anyio
SCALED = f"{Path(__file__).parents[1] / 'contract_kernels.py'}:SCALED"
"""Five candidates without a reference: nodes of one machine share its cores, and none is left out as slow."""
QUICK = BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=2)


@pytest.fixture(scope="module", autouse=True)
def mark() -> Iterator[str]:
    """Mark all processes: the nodes of these tests are in one program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark := new_mark())
        yield mark


OnAsk = Callable[["LoopbackAgent", str], None]


class LoopbackAgent:
    """The way to a `NodeAgent` of this process. Its calls run in tasks of their own, as on another machine."""

    def __init__(self, name: str, agent: NodeAgent, tasks: TaskGroup, end: Callable[[], None], on_ask: OnAsk) -> None:
        self.name, self.agent, self.on_ask = name, agent, on_ask
        self.asked: list[str] = []
        self.killed = ""
        self._tasks, self._end = tasks, end
        self._waiting: list[anyio.Event] = []

    async def ask(self, what: str, *given: Any) -> Reply:
        name = given[0].name if what == "run" else what
        self.asked.append(name)
        self.on_ask(self, name)
        asked = pickle.loads(pickle.dumps((what, *given)))
        answers, done, scope, ended = list[Reply](), anyio.Event(), anyio.CancelScope(), anyio.Event()

        async def call() -> None:
            try:
                with scope:
                    reply = await self.agent.answer(*asked)
                    answers.append(pickle.loads(pickle.dumps(reply)))
            finally:
                ended.set()
            done.set()

        if self.killed:
            raise NodeLost(self.killed)
        self._waiting.append(done)
        self._tasks.start_soon(call)
        try:
            await done.wait()
        except anyio.get_cancelled_exc_class():
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await ended.wait()
            raise
        if self.killed:
            raise NodeLost(self.killed)
        return answers[0]

    def kill(self) -> None:
        self.die("killed")

    def die(self, why: str) -> None:
        if not self.killed:
            self.killed = why
            for done in self._waiting:
                done.set()
            self._end()


class Loopback:
    """What `ClusterMachine` takes: `count` nodes in this process, which tests can kill and count, without Ray."""

    def __init__(self, count: int, on_ask: OnAsk = lambda agent, entry: None) -> None:
        self.count, self.on_ask = count, on_ask
        self.agents: list[LoopbackAgent] = []

    @asynccontextmanager
    async def __call__(self, opening: Opening) -> AsyncGenerator[tuple[list[Any], list[str]], None]:
        async with background() as tasks:
            for number in range(self.count):
                self.agents.append(await tasks.start(self._node, f"node-{number}", opening))
            yield list(self.agents), []
            for agent in self.agents:
                agent.kill()

    async def _node(self, name: str, opening: Opening, *, task_status: Any) -> None:
        with anyio.CancelScope() as scope, suppress(BaseExceptionGroup):
            own = msgspec.structs.replace(opening, cores=2)
            async with background() as tasks, NodeAgent(own) as node:
                task_status.started(LoopbackAgent(name, node, tasks, scope.cancel, self.on_ask))
                await anyio.sleep_forever()


def machine(connect: Any) -> ClusterMachine:
    settings = CompileSettings(store=False)
    return ClusterMachine(connect, parse_file_ref(SCALED), target="c", compile=settings, benchmark=QUICK)


async def test_two_nodes_share_a_run_and_its_journal_is_continued(tmp_path: Path) -> None:
    connect = Loopback(2)
    result = await tune(machine=machine(connect), budget=3, strategy="exhaustive", journal=tmp_path / "j")
    assert result.measured == 3 and result.best_config is not None
    assert {event.device.id for event in read(tmp_path / "j") if hasattr(event, "start_s")} >= {"node-0/cpu"}
    asked = {agent.name: set(agent.asked) for agent in connect.agents}
    assert connect.agents[0].asked.count("describe") == 1  # which loads the user's file
    assert "discover" in asked["node-0"] & asked["node-1"] and "build" in asked["node-0"] | asked["node-1"]
    whole = await resume(tmp_path / "j", machine=machine(Loopback(1)), budget=5)
    assert whole.measured == 5


@pytest.mark.parametrize("entry", ["build", "measure"])
async def test_what_a_lost_node_was_doing_is_done_by_the_others(entry: str, mark: str) -> None:
    events = list[Event]()

    def on_ask(agent: LoopbackAgent, asked: str) -> None:
        if agent.name == "node-1" and asked == entry:
            agent.die("its power went off")

    connect = Loopback(2, on_ask)
    result = await tune(machine=machine(connect), on_event=events.append)
    assert connect.agents[1].killed
    assert result.measured == 5
    assert {event.index for event in events if isinstance(event, CandidateMeasured)} == set(range(5))
    warned = [e.message for e in events if isinstance(e, Warned) and "was lost" in e.message]
    assert len(warned) == 1 and "node node-1 was lost: its power went off. 1 of 2 nodes are left" in warned[0]
    assert all(e.device.startswith("node-1/") for e in events if isinstance(e, DeviceLost))
    idle = {parked.server.pid} if parked.server is not None else set()
    wait_until(lambda: marked(mark).keys() <= idle, 5, "the nodes' processes are gone")


def test_an_unknown_exception_is_a_worker_error_with_its_traceback() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        there = sendable(error)
    assert isinstance(there, WorkerError) and str(there) == "ZeroDivisionError: by zero"
    assert "test_nodes.py" in there.detail


@pytest.mark.parametrize("wrong", ["", " ", 7])
def test_a_cluster_is_named_by_its_address(wrong: Any) -> None:
    with pytest.raises(UsageError, match="cluster must be auto"):
        run(SCALED, cluster=wrong)


def test_a_node_with_other_versions_is_told_which() -> None:
    there = versions_here()
    assert ray_cluster._differs(there) == ""
    why = ray_cluster._differs({**there, "Python": "3.9", "tilelang": "0.1.2"})
    assert f"Python 3.9 and not {there['Python']}" in why
    assert f"tilelang 0.1.2 and not {there['tilelang']}: install the same versions there" in why


@pytest.mark.parametrize(
    ("free", "workers", "claim"),
    [
        ({"CPU": 16.0, "GPU": 2.0}, None, {"num_cpus": 16, "num_gpus": 2}),
        ({"CPU": 16.0, "GPU": 2.0}, 4, {"num_cpus": 6, "num_gpus": 2}),
        ({"GPU": 1.0}, None, {"num_cpus": 0, "num_gpus": 1}),
    ],
)
def test_an_agent_claims_what_is_free_or_what_it_needs(
    free: dict[str, float], workers: int | None, claim: dict[str, Any]
) -> None:
    assert ray_cluster._claim({"Free": free}, workers) == claim


@pytest.mark.parametrize(("free", "workers", "found"), [((0, 4, 8), None, 8), ((2, 3), 8, 3)])
async def test_cores_that_an_ended_run_gives_back_late_are_waited_for(
    free: tuple[float, ...], workers: int | None, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray tells how many of a node's 8 cores are free, each time that it is asked."""
    left = list(free)

    def nodes(ray: Any) -> list[dict[str, Any]]:
        cores = left.pop(0) if len(left) > 1 else left[0]
        return [{"Name": "a", "Resources": {"CPU": 8.0}, "Free": {"CPU": cores}}]

    monkeypatch.setattr(ray_cluster, "_nodes", nodes)
    monkeypatch.setattr(ray_cluster, "SETTLE_S", 0.5 if free[-1] < 8 else 30.0)
    opening = Opening(parse_file_ref(SCALED), "c", (), CompileSettings(workers=workers), QUICK, 0)
    [node] = await ray_cluster._settled(None, opening)
    assert node["Free"]["CPU"] == found
