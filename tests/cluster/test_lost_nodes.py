"""Nodes that are lost at an unlucky moment: it costs no candidate, and no final."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_agents import Loopback, LoopbackAgent, Posing

from atune.frontends.api.tuner import tune
from atune.journal.events import BenchmarkFailed, BenchmarkRepeated, Event, FinalOrdered, Warned
from atune.model.artifact import Failure
from atune.model.jobs import MeasureJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster.machine import ClusterMachine
from atune.workload.workload import parse_file_ref

pytestmark = pytest.mark.anyio
SCALED = f"{Path(__file__).parents[1] / 'contract_kernels.py'}:SCALED"
TUNABLE = f"{Path(__file__).parents[1] / 'space_kernels.py'}:TUNABLE"
QUICK = BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def machine(connect: Any, workload: str = SCALED) -> ClusterMachine:
    return ClusterMachine(
        connect, parse_file_ref(workload), target="c", compile=CompileSettings(store=False), benchmark=QUICK
    )


async def test_neighbours_in_a_large_space_are_found_elsewhere_once_their_node_is_lost() -> None:
    """Only the first node was asked for the space; the others have not described it."""
    connect = Loopback(2)

    def on_ask(agent: LoopbackAgent, entry: str) -> None:
        if agent.name == "node-0" and entry == "neighbours" and "neighbours" in agent.asked[:-1]:
            agent.die("its power went off")

    connect.on_ask = on_ask
    opened, config = machine(connect, TUNABLE), {"a": 1, "b": 2, "c": 4}
    async with opened.open():
        await opened.discover()
        first = await opened.neighbours([config])
        assert first and first == await opened.neighbours([config])
    assert connect.agents[0].killed and "neighbours" in connect.agents[1].asked


async def test_a_candidate_is_measured_elsewhere_whose_node_is_lost_when_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first answer was in doubt. The loss of the node that repeats it counts no more against it than any other."""
    connect, events, run = Loopback(2), list[Event](), Posing.run
    doubtful: list[tuple[str, int]] = []

    async def doubted(self: Any, job: Any, worker: Any) -> Any:
        if isinstance(job, MeasureJob) and self is connect.agents[1].agent and not doubtful:
            doubtful.append((worker, job.artifact.index))
            return Failure(job.artifact.index, "fault", "it faults", "", "its process ran others")
        return await run(self, job, worker)

    def on_ask(agent: LoopbackAgent, entry: str) -> None:
        if agent.name == "node-1" and entry == "measure" and doubtful:
            agent.die("its power went off")

    monkeypatch.setattr(Posing, "run", doubted)
    connect.on_ask = on_ask
    result = await tune(machine=machine(connect), on_event=events.append)
    assert doubtful and connect.agents[1].killed
    reasons = [e.reason for e in events if isinstance(e, BenchmarkRepeated)]
    assert reasons[0] == "its process ran others" and "node node-1 was lost: its power went off" in reasons[1]
    assert result.measured == 5 and not [e for e in events if isinstance(e, BenchmarkFailed)]


async def test_a_final_whose_node_is_lost_is_held_on_another() -> None:
    connect, events = Loopback(2), list[Event]()

    def on_ask(agent: LoopbackAgent, entry: str) -> None:
        if entry == "final" and not any(one.killed for one in connect.agents):
            agent.die("its power went off")

    connect.on_ask = on_ask
    result = await tune(machine=machine(connect), on_event=events.append)
    [lost] = [agent.name for agent in connect.agents if agent.asked.count("final") and "power" in agent.killed]
    [ordered] = [e for e in events if isinstance(e, FinalOrdered)]
    assert not ordered.device.startswith(lost) and result.final
    assert not [e for e in events if isinstance(e, Warned) and "no final" in e.message]
