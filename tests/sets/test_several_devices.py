"""Sets of problems that several devices serve, with real processes: all problems end, whatever happens to a device."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

import atune
from atune import Problems
from atune.engine import benchmark_stage
from atune.errors import WorkerError
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine

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
