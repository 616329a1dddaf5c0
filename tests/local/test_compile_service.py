"""The compile service's process from run to run, where a run turns out to need none."""

from __future__ import annotations

import shutil

import pytest
from services import SOFTMAX, artifacts, lowered
from versions import accelerated

import atune
from atune.model.artifact import Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.jobs import BuildJob, FindJob, LowerJob
from atune.model.settings import CompileSettings
from atune.workers.local.machine import PLAIN, LocalMachine
from atune.workers.processes.server import services

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@accelerated
async def test_a_run_of_few_candidates_leaves_the_service_to_the_next_one() -> None:
    """It takes over what has parsed headers, learns that each candidate is compiled plain, and hands it on."""
    atune.shutdown()
    async with lowered(1, CompileSettings(workers=1, accelerate="cicc")) as (machine, _, _):
        assert machine.service.ready, machine.service.why
        pid = machine.service.pid
    few = LocalMachine(SOFTMAX, target="sm_90a", devices=(), compile=CompileSettings(workers=1, store=False))
    async with few.open():
        spec = await few.describe()
        await few.discover()
        assert few.accelerators(1)[0] == ()
        (worker,) = few.compile_workers()
        config = thaw(spec.configs[0])
        answer = await worker.run(LowerJob(Candidate(0, config_key(config), config)))
        assert isinstance(answer, Lowered) and await worker.run(FindJob(answer)) is None
        [built] = artifacts(list(await worker.run(BuildJob((answer,)))))
        assert (built.compiler, built.why) == ("nvcc", f"nvcc, because {PLAIN}")
        assert few.service.pid == pid and few.hints(0).builds == "all"
    [process] = services._servers.values()
    assert [worker.pid for worker in process.lasting] == [pid]


async def test_a_run_of_few_candidates_ends_a_service_that_has_only_begun() -> None:
    atune.shutdown()
    few = LocalMachine(SOFTMAX, target="sm_90a", devices=(), compile=CompileSettings(workers=1, store=False))
    async with few.open():
        await few.discover()
        few.accelerators(1)
        assert not few.service.warming
    assert not services._servers or all(process.lasting for process in services._servers.values())
