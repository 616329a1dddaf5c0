"""A space surveyed by real compile workers: for sm_90a without a GPU, so that nothing is measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from fake_runs import proposed

from atune.engine.engine import Engine
from atune.engine.run_state import Recorder
from atune.engine.settings import EngineSettings
from atune.journal.events import AnyEvent, CandidateProposed, SpaceSurveyed
from atune.model.device import DeviceInfo
from atune.model.jobs import FinalJob, Finals, Started, StartJob
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

GEMM = Path(__file__).parents[2] / "examples" / "gemm.py"
pytestmark = pytest.mark.anyio


class IdleDeviceWorker:
    """A device worker without a device, in a run that ends before it measures."""

    name, alive = "none", False

    async def run(self, job: Any) -> Any:
        if isinstance(job, StartJob):
            self.alive = True
            return Started(DeviceInfo(id="none", name="none"))
        return Finals((), None) if isinstance(job, FinalJob) else await anyio.sleep_forever()


class CompileOnly(LocalMachine):
    def device_workers(self) -> Any:
        return [IdleDeviceWorker()]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
async def test_the_288_products_are_proposed_in_the_order_of_the_prior() -> None:
    """The best by the figures of an H100; among the first are those that won on an H200."""
    settings = CompileSettings(workers=2, store=False)
    machine = CompileOnly(FileRef(str(GEMM), "WORKLOAD"), target="sm_90a", devices=(), compile=settings)
    events: list[AnyEvent] = []
    engine: list[Engine] = []

    def listen(event: Any) -> None:
        events.append(event)
        if len(proposed(events)) == 4:  # compiling them would take long, and nothing is asked of that here
            engine[0].stop()

    benchmark, budget = BenchmarkSettings(n_final=0), Budget(candidates=4)
    options = EngineSettings(compile=settings, benchmark=benchmark, budget=budget, strategy="prior")
    engine.append(Engine(machine, Recorder(None, (listen,)), options))
    with anyio.fail_after(240):
        await engine[0].run()
    [surveyed] = [event for event in events if isinstance(event, SpaceSurveyed)]
    assert surveyed.indices == tuple(range(288)) and None not in surveyed.prior
    estimate = {index: value for index, value in zip(surveyed.indices, surveyed.prior, strict=True) if value}
    default, found = engine[0].recorder.state.header.default, proposed(events)  # type: ignore[union-attr]
    ranks = sorted(estimate.values())
    assert found[0] == default and [estimate[index] for index in found[1:]] == ranks[:3]
    winners = {"block_M": (128, 256), "block_N": (128, 256), "num_stages": (3,), "threads": (256,)}
    for event in (one for one in events if isinstance(one, CandidateProposed) and one.index != default):
        assert all(event.config[name] in values for name, values in winners.items()), event.config
