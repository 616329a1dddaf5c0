"""Runs on a real Ray cluster of two nodes on this machine; slow, as Ray takes seconds to start."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from processes import MARK, marked, new_mark, wait_until

from atune.errors import UsageError
from atune.frontends.tuner import tune
from atune.journal.events import DeviceReady, Event, Warned
from atune.model.settings import BenchmarkSettings, CompileSettings

pytestmark = [pytest.mark.anyio, pytest.mark.asked]
KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
SCALED, MOODY = f"{KERNELS}:SCALED", f"{KERNELS}:MOODY"
QUICK: Any = {
    "target": "c",
    "compile": CompileSettings(store=False),
    "benchmark": BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=2),
}
ALL_GONE_S = 5.0


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what marks every process that Ray starts from now on."""
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    return mark


@pytest.fixture
def cluster(mark: str) -> Iterator[Any]:
    """A cluster of two nodes with two cores each, which this program has joined with a token."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed here: pip install ray")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(KERNELS.parent), os.environ.get("PYTHONPATH", "")])
    import ray  # after the environment, which it reads once
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def workers(mark: str) -> list[int]:
    """Return the processes of the fork servers that agents have started."""
    return [pid for pid, command in marked(mark).items() if "atune" in command and "ray::" not in command]


async def test_both_nodes_take_part_and_leave_nothing(cluster: Any, mark: str) -> None:
    events: list[Event] = []
    result = await tune(SCALED, cluster="auto", on_event=events.append, **QUICK)
    assert result.measured == 5
    assert len({event.device.id for event in events if isinstance(event, DeviceReady)}) == 2
    wait_until(lambda: not workers(mark), ALL_GONE_S, "the nodes' workers are gone")


async def test_a_node_that_is_killed_loses_nothing_that_was_measured(cluster: Any, mark: str) -> None:
    events: list[Event] = []
    lost: list[Any] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, DeviceReady) and not lost:
            lost.append(cluster.worker_nodes.copy().pop())
            cluster.remove_node(lost[0], allow_graceful=False)

    result = await tune(SCALED, cluster="auto", on_event=on_event, **QUICK)
    assert result.measured == 5 and lost
    warnings = [event.message for event in events if isinstance(event, Warned) and "was lost" in event.message]
    assert len(warnings) <= 1  # none where the other node had finished before Ray reported the loss
    assert all("1 of 2 nodes are left" in message for message in warnings)
    wait_until(lambda: not workers(mark), ALL_GONE_S, "the nodes' workers are gone")


async def test_a_cancelled_run_leaves_no_process_on_any_node(cluster: Any, mark: str) -> None:
    begun = anyio.Event()
    impatient = {**QUICK, "benchmark": BenchmarkSettings(n_warmup=1, n_repeat=3)}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: tune(MOODY, cluster="auto", on_event=lambda event: begun.set(), **impatient))
        await begun.wait()
        await anyio.sleep(1)
        assert workers(mark)
        tasks.cancel_scope.cancel()
    wait_until(lambda: not workers(mark), ALL_GONE_S, "the nodes' workers are gone")


async def test_a_cluster_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match=r"cannot join cluster '127.0.0.1:1', because .*ray start --head"):
        await tune(SCALED, cluster="127.0.0.1:1", **QUICK)
