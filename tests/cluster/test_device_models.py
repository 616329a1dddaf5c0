"""Which devices of a cluster measure: those of one model, and all nodes compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_agents import Loopback

from atune.errors import TargetError
from atune.model.device import DeviceInfo, Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster.agent import NodeAgent
from atune.workers.cluster.machine import NO_NVCC, ClusterMachine, shares
from atune.workers.local.machine import PLAIN, LocalMachine
from atune.workers.processes.messages import Discovery
from atune.workload.pickling import parse_file_ref

pytestmark = pytest.mark.anyio
SCALED = f"{Path(__file__).parents[1] / 'contract_kernels.py'}:SCALED"
QUICK = BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=2)
SM_90, CPU = Target("cuda", "sm_90a"), Target("c")
COMPILES = Discovery(SM_90, ())


def node(target: Target, *models: str) -> Discovery:
    return Discovery(target, tuple(DeviceInfo(id=str(number), name=model) for number, model in enumerate(models)))


@pytest.mark.parametrize(
    ("found", "ids"),
    [
        ({"a": node(SM_90, "H200", "H200"), "b": node(SM_90, "H200")}, {"a": ("0", "1"), "b": ("0",)}),
        ({"head": node(CPU, "EPYC"), "a": node(SM_90, "H200")}, {"head": (), "a": ("0",)}),
        ({"a": node(SM_90), "b": node(SM_90)}, {"a": (), "b": ()}),
    ],
    ids=["one model measures", "without a GPU a node compiles", "nodes that only compile"],
)
def test_what_nodes_measure_with(found: dict[str, Discovery], ids: dict[str, tuple[str, ...]]) -> None:
    assert shares(found) == (SM_90, ids)


def test_several_models_are_refused() -> None:
    found = {"a": node(SM_90, "NVIDIA H100"), "b": node(SM_90, "NVIDIA H200"), "c": node(SM_90, "NVIDIA H200")}
    with pytest.raises(TargetError) as refused:
        shares(found)
    assert "NVIDIA H100 on a, NVIDIA H200 on b, NVIDIA H200 on c" in str(refused.value)


def machine(connect: Any, **compile: Any) -> ClusterMachine:
    settings = CompileSettings(**{"store": False, **compile})
    reference = parse_file_ref(SCALED)
    return ClusterMachine(connect, reference, target="c", compile=settings, benchmark=QUICK)


async def found_by(
    connect: Loopback, monkeypatch: pytest.MonkeyPatch, *answers: Discovery | TargetError, then: Discovery = COMPILES
) -> Any:
    """Discover the devices of nodes that give these `answers`, and `then` that. Return names and warnings."""

    async def discover(self: Any, fingerprint: str, target: str = "", devices: tuple[str, ...] = ()) -> Any:
        if target:
            assert (target, devices) == ("sm_90a", ())
            return then, 1
        answer = answers[[one.agent for one in connect.agents].index(self)]
        if isinstance(answer, TargetError):
            raise answer
        return answer, 1

    monkeypatch.setattr(NodeAgent, "discover", discover)
    nodes, warned = machine(connect), list[str]()
    async with nodes.open(warned.append):
        _, devices = await nodes.discover()
    return [device.id for device in devices], warned


async def test_a_node_that_has_neither_the_devices_nor_nvcc_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, warned = await found_by(
        Loopback(2), monkeypatch, node(SM_90, "H200"), node(CPU, "EPYC"), then=Discovery(SM_90, (), nvcc=False)
    )
    assert devices == ["node-0/0"]
    assert warned == [f"node node-1 is left out: {NO_NVCC}"]


async def test_a_node_without_the_devices_that_were_asked_for_only_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --target cuda a head without GPUs is as useful as with the target that it would find itself."""
    none = TargetError("target cuda: no CUDA GPU is there")
    devices, warned = await found_by(Loopback(2), monkeypatch, none, node(SM_90, "H200"))
    assert devices == ["node-1/0"]
    assert warned == ["node node-0 only compiles: target cuda: no CUDA GPU is there"]


async def test_without_the_devices_on_any_node_the_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="no CUDA GPU is there"):
        await found_by(Loopback(2), monkeypatch, *[TargetError("target cuda: no CUDA GPU is there")] * 2)


def posing(monkeypatch: pytest.MonkeyPatch, compilers: int, **changes: str) -> None:
    """Have nodes say other things of themselves than are true."""
    real = NodeAgent.discover

    async def discover(self: Any, *given: Any) -> Any:
        found, _ = await real(self, *given)
        return msgspec.structs.replace(found, **changes), compilers

    monkeypatch.setattr(NodeAgent, "discover", discover)


@pytest.mark.parametrize(
    ("candidates", "lacking", "why"), [(4, "", PLAIN), (5, "", ""), (5, "gcc is missing", "gcc is missing")]
)
async def test_few_candidates_are_compiled_plain_as_on_one_machine(
    candidates: int, lacking: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, asked = machine(Loopback(2)), list[Any]()
    posing(monkeypatch, 2, no_cicc=lacking)
    monkeypatch.setattr(LocalMachine, "use", lambda self, no_cicc: asked.append(no_cicc))
    async with nodes.open():
        await nodes.discover()
        asked.clear()
        await nodes.prepare(candidates)
        assert asked == [why, why]


async def test_a_node_keeps_a_core_free_for_each_device() -> None:
    """On one machine the scheduler does, while a candidate is measured. It knows nothing of nodes' cores."""
    gpus = tuple(DeviceInfo(id=str(number), name="H200") for number in range(2))
    local = LocalMachine(parse_file_ref(SCALED), cores=2, compile=CompileSettings())
    local._found = Discovery(SM_90, gpus[:1])
    assert local.most_workers()[0] == 1
    local._found = Discovery(SM_90, gpus)
    assert local.most_workers()[0] == 1  # one at least
