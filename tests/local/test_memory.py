"""Device memory: how much a run used, and a limit for all processes of the program."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import torch

import atune
from atune.engine.benchmark_stage import DEVICE_STARTS
from atune.errors import DevicesLost, RemoteError, UsageError, WorkerError, WorkloadError
from atune.frontends.tuner import tune
from atune.journal.events import BenchmarkStarted, Event, Warned
from atune.model.artifact import KernelParam, Roles
from atune.model.jobs import PrepareJob
from atune.model.settings import BenchmarkSettings
from atune.stages.arguments import KernelArguments
from atune.workers import device_worker
from atune.workers import workers as patience
from atune.workers.device_worker import LocalDeviceWorker, MemoryClaim
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import parse_file_ref
from atune.workload.workload import Workload

KERNELS = Path(__file__).parent.parent / "contract_kernels.py"
X = KernelParam("float32", (64, 64))


@pytest.mark.parametrize(
    ("given", "n"), [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 g", 3 << 29), (1 << 30, 1 << 30), ("100", 100)]
)
def test_a_limit_is_a_number_of_bytes_or_a_size(given: Any, n: int) -> None:
    assert BenchmarkSettings(memory_limit=given).memory_limit == n


@pytest.mark.parametrize("given", ["", "4 GiBs", "-1", 0, "much", "1e3", True])
def test_another_limit_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="memory_limit must be a size, such as '4GiB'"):
        BenchmarkSettings(memory_limit=given)


def test_copies_on_the_host_restore_what_a_kernel_wrote() -> None:
    work = Workload(lambda x: None, [{"x": 1}])
    made = KernelArguments(work, [X, X], Roles((1,)), "cpu", copies_on_host=True)
    before = made.inputs[0].clone()
    assert made.changed() == set()
    made.inputs[0][3] = 7
    assert made.restore_inputs() == {0} and torch.equal(made.inputs[0], before)
    assert torch.equal(made.copies()[0], before)


class Waiting(LocalDeviceWorker):
    """A device's process, but for its process: it is only granted memory."""

    def __init__(self, devices: str, mine: int) -> None:
        self.name, self.said = devices, dict[str, str]()
        self.claim = self.claimed = MemoryClaim(devices, mine, 4 << 30)
        self.workers = cast(Any, SimpleNamespace(warn_once=self.said.__setitem__))


@pytest.mark.anyio
async def test_another_run_on_the_device_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_worker, "MEMORY_POLL_S", 0.001)
    one, other, elsewhere, rest = (Waiting(*of) for of in (("0", 3 << 30), ("0", 2 << 30), ("1", 4 << 30), ("0", 1)))
    for worker in (one, elsewhere, rest, one):  # whose process is replaced
        await worker._wait_for_memory()
    assert not any(worker.said for worker in (one, elsewhere, rest))
    with anyio.move_on_after(0.05) as waited:
        await other._wait_for_memory()
    assert waited.cancelled_caught and "waiting" in other.said["memory"]
    for worker in (one, one):
        worker.claimed.release()
    with anyio.fail_after(5):
        await other._wait_for_memory()
    for worker in (other, elsewhere, rest):
        worker.claimed.release()
    assert not MemoryClaim._held


@pytest.mark.anyio
async def test_runs_on_several_devices_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a device holds no other, which the run that it waits for may need."""
    monkeypatch.setattr(device_worker, "MEMORY_POLL_S", 0.001)
    first, both, second = Waiting("0", 3 << 30), Waiting("01", 3 << 30), Waiting("1", 3 << 30)
    await first._wait_for_memory()
    with anyio.move_on_after(0.05) as waited:
        await both._wait_for_memory()
    assert waited.cancelled_caught
    with anyio.fail_after(5):
        await second._wait_for_memory()
        for worker in (first, second):
            worker.claimed.release()
        await both._wait_for_memory()
    both.claimed.release()


def test_on_the_cpu_a_limit_is_said_to_hold_for_gpus_alone(tmp_path: Path) -> None:
    settings = BenchmarkSettings(memory_limit="1GiB")
    result = atune.run(f"{KERNELS}:SCALED", target="c", benchmark=settings, journal=tmp_path / "j", progress=False)
    assert "memory_limit has no effect: it applies only to GPUs, and the kernels run on the CPU" in result.warnings
    assert result.memory_bytes == 0


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [2, 99])
async def test_a_device_is_not_given_up_while_a_killed_process_still_holds_its_memory(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is replaced after a loss; the new one begins once the memory is there."""
    real, starts, events = LocalDeviceWorker._new, list[bool](), list[Event]()
    monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.01, 0.02))

    async def new(self: LocalDeviceWorker) -> Any:
        starts.append(1 <= len(starts) <= fails)
        if starts[-1]:
            message = "device memory: CUDA error: out of memory (NVML names process 7 (python, 70000 MiB))"
            raise RemoteError(message, kind="ShortOf")
        return await real(self)

    monkeypatch.setattr(LocalDeviceWorker, "_new", new)

    def listen(event: Event) -> None:
        events.append(event)
        if sum(isinstance(one, BenchmarkStarted) for one in events) == 1 and isinstance(event, BenchmarkStarted):
            [device] = machine._devices
            assert device._worker is not None
            os.kill(device._worker.pid, signal.SIGKILL)

    machine = LocalMachine(parse_file_ref(f"{KERNELS}:SCALED"), target="c")
    if fails == 2:
        result = await tune(machine=machine, on_event=listen)
        assert result.measured == 5 and len(starts) == 4
    else:
        with pytest.raises(DevicesLost, match=r"given up: device memory: .* process 7 \(python, 70000 MiB\)"):
            await tune(machine=machine, on_event=listen)
        assert len(starts) == 1 + DEVICE_STARTS * 4
    waits = [event.message for event in events if isinstance(event, Warned) and "process 7" in event.message]
    assert len(waits) == 1 and waits[0].startswith("waiting")


@pytest.mark.anyio
async def test_inputs_without_memory_are_the_workloads_mistake_once_waiting_was_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def full(*_: object) -> None:
        raise RemoteError("device memory: Workload x: make the problem smaller", kind="ShortOf")

    worker = Waiting("0", 1)
    monkeypatch.setattr(worker, "call", full)
    worker.session, worker._inputs = cast(Any, SimpleNamespace(benchmark=BenchmarkSettings())), None
    with pytest.raises(WorkloadError, match=r"^Workload x: make the problem smaller"):
        await worker._made(PrepareJob((X,), Roles(), timed=False))
    worker._inputs = PrepareJob((X,), Roles(), timed=False)  # which fitted before: that is no mistake of the workload's
    with pytest.raises(WorkerError, match="device memory"):
        await worker._made(worker._inputs)


@pytest.mark.gpu
def test_beside_a_full_card_a_run_stays_within_its_limit(tmp_path: Path) -> None:
    """Another program holds all but the limit. Copies that do not fit go to the host; what needs more fails."""
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) - 1  # tests that use the card meanwhile
    limit, kept = 3 << 30, (256 << 20) + beside * (2 << 30)
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - limit - kept, dtype=torch.uint8, device="cuda").fill_(7)
    settings = BenchmarkSettings(memory_limit=limit)
    work = f"{Path(__file__).parent.parent / 'memory_kernels.py'}"
    given: dict[str, Any] = {"target": "cuda", "benchmark": settings, "progress": False}
    result = atune.run(f"{work}:FITS", journal=tmp_path / "fits", **given)
    assert result.measured == 2 and not result.failures and 2 << 30 < result.memory_bytes <= limit
    found = atune.run(f"{work}:SOME", journal=tmp_path / "some", **given)
    assert [record.kind for record in found.failures] == ["out_of_memory"]
    assert "memory_limit allows 3072 MiB" in found.failures[0].message
    with pytest.raises(WorkloadError, match=r"has too little memory .*memory_limit allows 3072 MiB"):
        atune.run(f"{work}:NONE", journal=tmp_path / "none", **given)
    assert all(bool((part == 7).all()) for part in hog.split(64 << 20))
