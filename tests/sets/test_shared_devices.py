"""The processes of a set: how many there are, what they hold, and which serve another problem."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
import torch
from set_kernels import ROWS

import atune
from atune import Problems
from atune.engine.proof import ProofStage
from atune.frontends.sets import tuning
from atune.frontends.sets.set_result import SetResult
from atune.journal.events import AnyEvent, BenchmarkFailed, DeviceLost, Event, RunFinished, RunStarted
from atune.model.artifact import KernelParam, Roles
from atune.model.candidate import Candidate
from atune.model.jobs import LowerJob, PrepareJob, StartJob
from atune.stages.measure import benchmark
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workers.local.machine import LocalMachine
from atune.workers.local.workers import SharedPlace, SharedServer, Workers
from atune.workers.processes.messages import MEASURE
from atune.workers.processes.pool import ForkServer
from atune.workers.processes.worker import Worker
from atune.workload.workload import FileRef

OUT = Roles(outputs=(1,))

pytestmark = [pytest.mark.timeout(170), pytest.mark.anyio]
KERNELS = str(Path(__file__).parents[1] / "set_kernels.py")
DEVICE = "device-cpu"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the processes that are forked, by role."""
    counted, spawn = Counter[str](), ForkServer.spawn

    async def counting(server: ForkServer, role: str, **how: Any) -> Worker:
        counted[role] += 1
        return await spawn(server, role, **how)

    monkeypatch.setattr(ForkServer, "spawn", counting)
    return counted


def tuned(
    folder: Path, name: str, *sizes: int, on_event: Callable[[Event], None] | None = None, **options: Any
) -> SetResult:
    return atune.run_set(
        f"{KERNELS}:{name}", Problems(n=sizes), journal=folder, target="c", on_event=on_event,
        benchmark=atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3, n_final_limit=3),
        **options,
    )  # fmt: skip


def test_two_processes_of_a_device_serve_all_problems(forked: Counter[str], tmp_path: Path) -> None:
    result = tuned(tmp_path / "s", "SCALE", 256, 512, 1024, 2048, 4096)
    assert len(result.winners) == 5 and all(row.result.measured == 2 for row in result.winners)  # type: ignore[union-attr]
    assert forked[DEVICE] == 2


@pytest.mark.parametrize("mode, kind, processes", [("wrong", "mismatch", 1), ("segv", "fault", 3)])
def test_a_process_in_which_a_candidate_failed_serves_no_other_problem(
    mode: str, kind: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process repeats the fault alone, and faults too. A third one goes on."""
    events, served, passed_on = list[Event](), list[int](), list[int]()
    begin, pass_on = LocalDeviceWorker._begun, Workers.pass_on

    async def noting(device: LocalDeviceWorker, worker: Worker) -> Worker:
        if device.context.session.ref.arguments["n"] == 256:  # type: ignore[union-attr]
            served.append(worker.pid)
        return await begin(device, worker)

    def passing(workers: Workers, role: str, worker: Worker) -> None:
        passed_on.append(worker.pid)
        pass_on(workers, role, worker)

    monkeypatch.setattr(LocalDeviceWorker, "_begun", noting)
    monkeypatch.setattr(Workers, "pass_on", passing)
    result = tuned(tmp_path / "s", f"BAD_{mode.upper()}", 256, 512, 1024, 2048, on_event=events.append)
    assert [event.kind for event in events if isinstance(event, BenchmarkFailed)] == [kind]
    assert [row.result.measured for row in result.winners] == [1, 2, 2, 2]  # type: ignore[union-attr]
    assert len(served) == processes and not {*served[:2]} & {*passed_on}


def test_a_process_that_ends_between_two_problems_harms_neither(
    forked: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, taken = list[AnyEvent](), Workers.taken

    def killing(workers: Workers, role: str) -> Worker | None:
        worker = taken(workers, role)
        if worker is not None and role == DEVICE:
            os.kill(worker.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(Workers, "taken", killing)
    result = tuned(tmp_path / "s", "SCALE", 256, 512, 1024, on_event=events.append)
    assert [row.result.measured for row in result.winners] == [2, 2, 2]  # type: ignore[union-attr]
    assert not [event for event in events if isinstance(event, DeviceLost)]
    assert forked[DEVICE] == 3


def test_two_problems_hold_inputs_also_while_winners_are_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proof ends before the last problem has begun, so that no problem waits for a proof either."""
    devices, held = set[LocalDeviceWorker](), list[int]()
    under_way, all_began = Counter[type[Event]](), False
    prepare, leave, prove = LocalDeviceWorker._prepare, LocalDeviceWorker.leave, ProofStage._prove_winner

    async def counting(device: LocalDeviceWorker, job: PrepareJob) -> Any:
        prepared = await prepare(device, job)
        devices.add(device)
        held.append(sum(one._prepared for one in devices))
        return prepared

    async def after_the_next_has_inputs(device: LocalDeviceWorker) -> None:
        with anyio.fail_after(100):
            while max(held) < 2:
                await anyio.sleep(0.01)
        await leave(device)

    async def late(stage: ProofStage) -> bool:
        with anyio.fail_after(100):
            while not all_began:
                await anyio.sleep(0.01)
        return await prove(stage)

    def on_event(event: Event) -> None:
        nonlocal all_began
        under_way[type(event)] += 1
        all_began = under_way[RunStarted] == 5
        assert all_began or not under_way[RunFinished]

    monkeypatch.setattr(LocalDeviceWorker, "_prepare", counting)
    monkeypatch.setattr(LocalDeviceWorker, "leave", after_the_next_has_inputs)
    monkeypatch.setattr(ProofStage, "_prove_winner", late)
    assert len(tuned(tmp_path / "s", "SCALE", 256, 512, 1024, 2048, 4096, on_event=on_event).winners) == 5
    assert len(devices) == 5 and max(held) == 2


@pytest.mark.parametrize("waits", [False, True])
def test_problems_whose_winners_are_proven_keep_no_idle_compile_process(
    waits: bool, forked: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight problems, of which none ends before the last one has begun, compile in the processes of two, as many as
    may on two cores."""
    monkeypatch.setattr(tuning, "usable_cores", lambda: [0, 1])
    began, prove = 0, ProofStage._prove_winner

    async def late(stage: ProofStage) -> bool:
        with anyio.fail_after(100):
            while waits and began < 8:
                await anyio.sleep(0.01)
        return await prove(stage)

    def on_event(event: Event) -> None:
        nonlocal began
        began += isinstance(event, RunStarted)

    monkeypatch.setattr(ProofStage, "_prove_winner", late)
    sizes = [256 << doubled for doubled in range(8)]
    compile = atune.CompileSettings(workers=1)
    assert len(tuned(tmp_path / "s", "SCALE", *sizes, on_event=on_event, compile=compile).winners) == 8
    assert forked["compile-0"] <= 2


async def test_a_run_waits_for_a_compile_process_rather_than_add_one_to_those_of_two(forked: Counter[str]) -> None:
    host = SharedServer(runs=1, places=1)
    machines = [
        LocalMachine(FileRef(KERNELS, "ANY"), target="c", compile=atune.CompileSettings(workers=1)) for _ in range(2)
    ]
    async with host.open(), AsyncExitStack() as stack:
        workers = []
        for machine in machines:
            machine.place = SharedPlace(host)
            await stack.enter_async_context(machine.open())
            await machine.describe()
            await machine.discover()
            workers += machine.compile_workers()
        proves, waits = workers
        job = LowerJob(Candidate(1, "", {"block": 64}))
        await proves.run(job)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits.run, job)
            await anyio.sleep(0.3)
            assert forked["compile-0"] == 1 and waits._worker is None
            tasks.start_soon(proves.run, job)
            await anyio.sleep(0)
            await machines[0].rest()
        assert forked["compile-0"] == 1 and waits._worker is not None and waits._worker.passed_on


@pytest.mark.parametrize("cores, budget, at_once", [(2, None, 2), (16, None, 4), (16, "900s", 2)])
def test_more_problems_compile_than_hold_inputs(
    cores: int, budget: str | None, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On enough cores, unless seconds count. No problem ends before as many have begun as may."""
    hosts, begun, most = list[SharedServer](), 0, 0

    class Noted(SharedServer):
        def __init__(self, runs: int, places: int) -> None:
            super().__init__(runs, places)
            hosts.append(self)

    begin, rest = SharedPlace.begin, LocalMachine.rest

    async def beginning(place: SharedPlace) -> None:
        nonlocal begun, most
        await begin(place)
        begun += 1
        most = max(most, begun)

    async def resting(machine: LocalMachine) -> None:
        nonlocal begun
        with anyio.fail_after(100):
            while most < at_once:
                await anyio.sleep(0.01)
        begun -= 1
        await rest(machine)

    monkeypatch.setattr(tuning, "SharedServer", Noted)
    monkeypatch.setattr(tuning, "usable_cores", lambda: list(range(cores)))
    monkeypatch.setattr(tuning, "usable_memory_bytes", lambda: None)
    monkeypatch.setattr(SharedPlace, "begin", beginning)
    monkeypatch.setattr(LocalMachine, "rest", resting)
    sizes = (256, 512, 1024, 2048, 4096)
    result = atune.run_set(
        f"{KERNELS}:SCALE", Problems(n=sizes), journal=tmp_path / "s", target="c", budget=budget,
        benchmark=atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3, n_final_limit=3),
        compile=atune.CompileSettings(workers=1),
    )  # fmt: skip
    assert len(result.winners) == 5 and most == at_once and hosts[0].places.value == 2


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_inputs_are_freed_after_the_final_and_measuring_again_waits_for_a_place(forked: Counter[str]) -> None:
    host, machine = SharedServer(runs=1, places=1), LocalMachine(FileRef(KERNELS, "ANY"), target="c")
    machine.place, other = SharedPlace(host), SharedPlace(host)
    async with host.open():
        await machine.place.take()
        async with machine.open():
            await machine.describe()
            await machine.discover()
            (device,) = machine.device_workers()
            await device.run(StartJob())
            assert device._worker is not None
            pid = device._worker.pid
            before = resident_bytes(pid)
            await device.run(PrepareJob((KernelParam("float32", ("n",)),) * 2, OUT))
            assert resident_bytes(pid) - before > 3 * 4 * ROWS  # input, its copy, output and what is expected
            await machine.rest()
            assert resident_bytes(pid) - before < 4 * ROWS and not device.alive
            await other.take()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(device.run, StartJob())
                await anyio.sleep(0.2)
                assert not device.alive
                other.leave()
            assert device._worker is not None and device._worker.pid == pid and forked[DEVICE] == 1
            assert device._prepared and device._used, "an earlier problem's candidates have run in it"
            device._tried = 1
            await machine.rest()
            await device.run(StartJob())
            assert device._worker.pid != pid and not device._used, "a candidate is repeated in a fresh process"


async def test_a_process_that_cannot_free_its_inputs_is_not_passed_on() -> None:
    host, machine = SharedServer(runs=1, places=1), LocalMachine(FileRef(KERNELS, "ANY"), target="c")
    machine.place = SharedPlace(host)
    async with host.open(), machine.open():
        await machine.discover()
        (device,) = machine.device_workers()
        await device.run(StartJob())
        worker = device._worker
        assert worker is not None
        await worker.call(f"{MEASURE}release", b"")  # once more it fails: nothing is left
        await machine.rest()
        assert not worker.alive and not host.idle[DEVICE]


def test_on_a_gpu_freed_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for CUDA: the device is waited for first, so that a broken one refuses."""
    device, done = benchmark._Device(), list[str]()
    device.arguments = device.expected = inputs = Mock()
    device.timer = Mock(synchronise=lambda: done.append("waited" if device.arguments is inputs else "too late"))
    monkeypatch.setattr(benchmark, "_device", device)
    monkeypatch.setattr(benchmark, "session", lambda: Mock(device="0"))
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: done.append("given back" if device.arguments is None else "nothing")
    )
    benchmark.release(b"")
    assert done == ["waited", "given back"] and device.expected is None and not hasattr(device, "timer")
