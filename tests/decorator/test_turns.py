"""Runs take turns on a device: in one program, in several, when one is killed, stopped or cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from atune.frontends.tuner import tune
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.device_worker import device_lock
from atune.workers.messages import JOBS
from atune.workers.pool import Worker

pytestmark = pytest.mark.anyio
KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
HOLDER = """
import sys, anyio, pathlib
from atune.workers.device_worker import device_lock
async def main():
    async with device_lock("gpu", pathlib.Path(sys.argv[1])):
        print("held", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another program that holds the device."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


async def test_a_run_without_a_pause_leaves_every_other_turn_to_one_that_waits(tmp_path: Path) -> None:
    turns: list[str] = []
    holders = 0

    async def run(name: str) -> None:
        nonlocal holders
        for _ in range(10):
            async with device_lock("gpu", tmp_path) as waited_s:
                assert waited_s is not None and holders == 0
                holders += 1
                turns.append(name)
                await anyio.sleep(0.02)
                holders -= 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "a")
            tasks.start_soon(run, "b")
    shared = "".join(turns)[1:18]
    assert len(turns) == 20 and "aaa" not in shared and "bbb" not in shared, turns


async def test_a_killed_program_leaves_the_device_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with anyio.move_on_after(0.2) as scope:
        async with device_lock("gpu", tmp_path):
            raise AssertionError("it is held by the other program")
    assert scope.cancelled_caught
    holder.kill()
    with anyio.fail_after(5):
        async with device_lock("gpu", tmp_path) as waited_s:
            assert waited_s is not None


async def test_a_stopped_program_is_not_waited_for_for_ever(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGSTOP)
    began = time.monotonic()
    async with device_lock("gpu", tmp_path, patience_s=0.3) as waited_s:
        assert waited_s is None and 0.3 <= time.monotonic() - began < 3


async def test_a_cancelled_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with device_lock("gpu", tmp_path):
        began = time.monotonic()
        with anyio.move_on_after(0.1):
            async with device_lock("gpu", tmp_path):
                raise AssertionError("it is held already")
        assert time.monotonic() - began < 0.5
    async with device_lock("gpu", tmp_path) as waited_s:
        assert waited_s is not None and waited_s < 0.5
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_two_runs_of_one_program_never_measure_at_once(
    monkeypatch: pytest.MonkeyPatch, anyio_backend: object
) -> None:
    """Real processes on the CPU. Both end, and both measure all that can be measured."""
    spans: list[tuple[float, float, str]] = []
    call = Worker.call

    async def watched(worker: Worker, entry: str, *rest: Any, **options: Any) -> bytes:
        began = time.monotonic()
        try:
            return await call(worker, entry, *rest, **options)
        finally:
            if entry in {JOBS + name for name in ("prepare", "measure", "bits", "final", "rest_device")}:
                spans.append((began, time.monotonic(), str(worker.pid)))

    monkeypatch.setattr(Worker, "call", watched)
    settings: dict[str, Any] = {
        "compile": CompileSettings(workers=1), "benchmark": BenchmarkSettings(n_repeat=5, n_final_rounds=5),
    }  # fmt: skip
    results: list[Any] = []

    async def run() -> None:
        results.append(await tune(f"{KERNELS.parent / 'fault_kernels.py'}:OWN", target="c", **settings))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        tasks.start_soon(run)
    assert [r.measured for r in results] == [2, 2]
    assert len({pid for _, _, pid in spans}) >= 2 and len(spans) >= 8
    spans.sort()
    assert all(this[1] <= after[0] for this, after in pairwise(spans)), spans
