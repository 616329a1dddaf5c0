"""Sets of problems that several devices serve, with real processes: all problems end, whatever happens to a device."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import atune
from atune import Problems
from atune.engine import benchmark_stage
from atune.errors import DevicesLost, WorkerError
from atune.events import CandidateMeasured, Event, FinalOrdered, RunFinished, RunResumed, RunStarted
from atune.frontends import tune_set
from atune.frontends.tuner import RunPlan
from atune.model.device import DeviceInfo, Target
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine, Shared

pytestmark = [pytest.mark.timeout(100), pytest.mark.anyio]
KERNELS = str(Path(__file__).parents[1] / "set_kernels.py")
SIZES = [256 << doubled for doubled in range(6)]


DEVICES = 3


@pytest.mark.parametrize("loss", ["preparing", "measuring", "for good"])
async def test_a_set_ends_whatever_happens_to_one_of_its_devices(
    loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU, served by several device workers. The process of one of them is killed, in the second problem or later,
    as it prepares or measures; `for good`: it does not start again in any problem."""
    started, lost, calls = set[str](), list[str](), 0
    method = "_prepare" if loss == "preparing" else "_answered"
    make, start, original = LocalMachine.device_workers, LocalDeviceWorker._start, getattr(LocalDeviceWorker, method)

    def several(machine: LocalMachine) -> list[LocalDeviceWorker]:
        [first] = workers = make(machine)
        for number in range(1, DEVICES):
            assert machine.shared is not None
            idle = machine.shared.idle.setdefault(f"cpu-{number}", [])
            workers.append(LocalDeviceWorker(first.workers, first.session, first.info, first.cpus, idle=idle))
            workers[-1].name = f"cpu-{number}"
        return workers

    async def starting(device: LocalDeviceWorker) -> Any:
        started.add(device.name)
        if loss == "for good" and device.name in lost:
            raise WorkerError("its host is gone")
        return await start(device)

    async def losing(device: LocalDeviceWorker, *job: Any) -> Any:
        nonlocal calls
        calls += 1
        if not lost and calls > 2 * DEVICES:
            lost.append(device.name)
            assert device._worker is not None
            os.kill(device._worker.pid, signal.SIGKILL)
        return await original(device, *job)

    monkeypatch.setattr(benchmark_stage, "SPEED_TOLERANCE", math.inf)  # of one CPU, differences are noise
    monkeypatch.setattr(LocalMachine, "device_workers", several)
    monkeypatch.setattr(LocalDeviceWorker, "_start", starting)
    monkeypatch.setattr(LocalDeviceWorker, method, losing)
    settings = atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3)
    with anyio.fail_after(80):
        result = await atune.tune_set(
            f"{KERNELS}:SCALE", Problems(n=SIZES), target="c", journal=tmp_path / "s", benchmark=settings
        )
    assert [row.result.measured for row in result.winners] == [2] * len(SIZES)  # type: ignore[union-attr]
    assert len(started) == DEVICES and len(lost) == 1


# ---- each problem on one of the devices

TWO = [DeviceInfo("cpu-0", "a CPU"), DeviceInfo("cpu-1", "a CPU")]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Have the CPU pass for two devices. Return how often the process of each has started."""
    starts: Counter[str] = Counter()
    make, lent, start = LocalMachine.device_workers, Shared.lent, LocalDeviceWorker._start

    def device_workers(machine: LocalMachine) -> list[LocalDeviceWorker]:
        assert machine.shared is not None
        [chosen] = machine.discovery.devices
        machine.discovery = msgspec.structs.replace(machine.discovery, devices=(DeviceInfo("cpu", chosen.name),))
        [worker] = make(machine)
        worker.name = worker._device = chosen.id
        worker._idle = machine.shared.idle.setdefault(chosen.id, [])
        return [worker]

    async def starting(device: LocalDeviceWorker) -> Any:
        starts[device.name] += 1
        return await start(device)

    monkeypatch.setattr(tune_set, "find_target", lambda *_: (Target("c"), TWO))
    monkeypatch.setattr(Shared, "lent", lambda shared, _: lent(shared, TWO))
    monkeypatch.setattr(LocalMachine, "device_workers", device_workers)
    monkeypatch.setattr(LocalDeviceWorker, "_start", starting)
    return starts


async def tuned(folder: Path, sizes: list[int]) -> tuple[Any, list[Event]]:
    events = list[Event]()
    settings = atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3)
    with anyio.fail_after(80):
        result = await atune.tune_set(
            f"{KERNELS}:SCALE", Problems(n=sizes), target="c", journal=folder, benchmark=settings,
            on_event=events.append,
        )  # fmt: skip
    return result, events


async def test_two_devices_are_busy_with_different_problems(two: dict[str, int], tmp_path: Path) -> None:
    """Each problem is prepared, measured and decided on one device, and has the candidates that it has on one CPU."""
    result, events = await tuned(tmp_path / "s", SIZES)
    assert [row.result.measured for row in result.winners] == [2] * len(SIZES)
    assert two["cpu-0"] >= 2 and two["cpu-1"] >= 2 and sum(two.values()) == len(SIZES)
    used = [{record.device for record in row.result.records} for row in result]
    assert all(len(devices) == 1 for devices in used) and set.union(*used) == {"cpu-0", "cpu-1"}
    finals = Counter(event.device for event in events if isinstance(event, FinalOrdered))
    assert min(finals["cpu-0"], finals["cpu-1"]) >= 2 and finals.total() == len(SIZES)
    under_way = most = 0
    for event in events:
        under_way += isinstance(event, RunStarted) - isinstance(event, RunFinished)
        most = max(most, under_way)
    assert most == 2


async def test_a_lost_device_leaves_the_rest_to_the_other(
    two: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process does not start again after its first problem: the problem that it had is continued elsewhere."""
    start = LocalDeviceWorker._start

    async def starting(device: LocalDeviceWorker) -> Any:
        if device.name == "cpu-1" and two["cpu-1"] >= 1:
            raise WorkerError("its host is gone")
        return await start(device)

    monkeypatch.setattr(LocalDeviceWorker, "_start", starting)
    result, events = await tuned(tmp_path / "s", SIZES)
    assert [row.result.measured for row in result.winners] == [2] * len(SIZES)
    by_device = Counter(event.device for event in events if isinstance(event, CandidateMeasured))
    assert by_device == {"cpu-1": 2, "cpu-0": 2 * (len(SIZES) - 1)}
    assert sum(isinstance(event, RunResumed) for event in events) == 1


async def test_the_loss_of_all_devices_ends_a_set(
    two: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def starting(device: LocalDeviceWorker) -> Any:
        raise WorkerError("its host is gone")

    monkeypatch.setattr(LocalDeviceWorker, "_start", starting)
    with pytest.raises(DevicesLost, match="no device is left"):
        await tuned(tmp_path / "s", SIZES)


async def test_runs_take_the_devices_that_fewest_runs_use() -> None:
    server: Any = None
    shared = Shared(server, server, apart=True)
    with ExitStack() as runs:
        taken = [runs.enter_context(shared.lent(TWO)) for _ in range(8)]
        assert Counter(device.id for [device] in taken) == {"cpu-0": 4, "cpu-1": 4}
        shared.lost.add("cpu-0")
        assert runs.enter_context(shared.lent(TWO)) == (TWO[1],)
    assert not any(shared.runs.values())
    with Shared(server, server).lent(TWO) as all_devices:
        assert [*all_devices] == TWO


@pytest.mark.parametrize(
    ("devices", "workers", "budget", "expected"),
    [
        (1, 22, 12, 4),
        (2, 46, 12, 8),
        (2, 22, 12, 4),
        (8, 46, 12, 9),
        (1, 5, 12, 2),
        (2, 46, "60s", 4),
        (8, 400, 12, 14),
    ],
)
async def test_as_many_problems_at_a_time_as_devices_and_cores_bear(
    devices: int, workers: int, budget: Any, expected: int, tmp_path: Path
) -> None:
    """A set of 14 problems; `workers`: how many compile workers the cores bear."""
    plan = RunPlan.of("tune_set", {"budget": budget})
    run = tune_set._SetRun(atune.Workload(lambda n: n, [{}]), Problems(n=list(range(14))), plan, tmp_path, None)
    run._fit = workers
    assert run._most_at_once(devices) == expected
