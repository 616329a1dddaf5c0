"""Which devices of a cluster measure: those of one model, and all nodes compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_agents import Loopback

from atune.errors import TargetError
from atune.model.device import NO_GPU, DeviceInfo, Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster.agent import NodeAgent
from atune.workers.cluster.machine import NO_NVCC, ClusterMachine, shares
from atune.workers.cluster.messages import DiscoverJob, NodeFound
from atune.workers.local.machine import ALIKE, PLAIN, LocalMachine
from atune.workers.processes.messages import Discovery
from atune.workload.pickling import parse_file_ref

pytestmark = pytest.mark.anyio
SCALED = f"{Path(__file__).parents[1] / 'contract_kernels.py'}:SCALED"
QUICK = BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=2)
SM_90, CPU = Target("cuda", "sm_90a"), Target("c")
COMPILES = Discovery(SM_90, ())


def node(target: Target, *models: str) -> Discovery:
    return Discovery(target, tuple(DeviceInfo(id=str(number), name=model) for number, model in enumerate(models)))


def test_nodes_of_one_model_measure_with_all_they_have() -> None:
    found = {"a": node(SM_90, "H200", "H200"), "b": node(SM_90, "H200")}
    assert shares(found) == (SM_90, {"a": ("0", "1"), "b": ("0",)})


def test_a_node_without_gpus_compiles_for_those_that_have_some() -> None:
    assert shares({"head": node(CPU, "EPYC"), "a": node(SM_90, "H200")}) == (SM_90, {"head": (), "a": ("0",)})


def test_nodes_that_only_compile_all_take_part() -> None:
    assert shares({"a": node(SM_90), "b": node(SM_90)}) == (SM_90, {"a": (), "b": ()})


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

    async def run(self: Any, job: Any, worker: Any) -> Any:
        if not isinstance(job, DiscoverJob):
            return await NodeAgent.run(self, job, worker)
        if job.target:
            assert (job.target, job.devices) == ("sm_90a", ())
            return NodeFound(then, 1)
        answer = answers[[one.agent for one in connect.agents].index(self)]
        if isinstance(answer, TargetError):
            raise answer
        return NodeFound(answer, 1)

    monkeypatch.setattr("cluster_agents.Posing.run", run)
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


async def test_a_node_that_can_do_nothing_for_the_target_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, warned = await found_by(Loopback(2), monkeypatch, TargetError("g++ is missing"), node(CPU, "EPYC"))
    assert devices == ["node-1/0"] and warned == ["node node-0 is left out: g++ is missing"]


async def test_without_the_devices_on_any_node_the_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="no CUDA GPU is there"):
        await found_by(Loopback(2), monkeypatch, *[TargetError("target cuda: no CUDA GPU is there")] * 2)


@pytest.mark.parametrize(
    ("candidates", "lacking", "why"), [(4, "", PLAIN), (5, "", ""), (5, "gcc is missing", "gcc is missing")]
)
async def test_few_candidates_are_compiled_plain_as_on_one_machine(candidates: int, lacking: str, why: str) -> None:
    connect = Loopback(2)

    async def run(self: Any, job: Any, worker: Any) -> Any:
        found = await NodeAgent.run(self, job, worker)
        if not isinstance(found, NodeFound):
            return found
        return NodeFound(msgspec.structs.replace(found.discovery, no_cicc=lacking), 2)

    nodes, asked = machine(connect), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster_agents.Posing.run", run)
        patch.setattr("atune.workers.local.machine.LocalMachine.use", lambda self, no_cicc: asked.append(no_cicc))
        async with nodes.open():
            await nodes.discover()
            asked.clear()
            await nodes.prepare(candidates)
            assert asked == [why, why]


@pytest.mark.parametrize(("fallback", "alike"), [(NO_GPU, ALIKE), ("", 0)])
async def test_equal_failures_end_a_run_without_a_gpu_on_any_node(
    fallback: str, alike: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: Any, job: Any, worker: Any) -> Any:
        found = await NodeAgent.run(self, job, worker)
        if not isinstance(found, NodeFound):
            return found
        return NodeFound(msgspec.structs.replace(found.discovery, fallback=fallback), 1)

    monkeypatch.setattr("cluster_agents.Posing.run", run)
    nodes = machine(Loopback(2))
    async with nodes.open():
        await nodes.discover()
        assert nodes.hints(0).alike == alike


async def test_a_node_keeps_a_core_free_for_each_device() -> None:
    """On one machine the scheduler does, while a candidate is measured. It knows nothing of nodes' cores."""
    gpus = tuple(DeviceInfo(id=str(number), name="H200") for number in range(2))
    local = LocalMachine(parse_file_ref(SCALED), cores=2, compile=CompileSettings())
    local._found = Discovery(SM_90, gpus[:1])
    assert local.most_workers()[0] == 1
    local._found = Discovery(SM_90, gpus)
    assert local.most_workers()[0] == 1  # one at least
