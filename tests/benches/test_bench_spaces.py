"""The spaces of bench/spaces: their sizes, and that kernels spread over each compile, without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from spaces import FOLDER, SPACES, SUFFIX, Space, opened

from atune.journal.reader import replay
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.jobs import BuildJob, LowerJob
from atune.model.settings import CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.pickling import FileRef
from atune.workload.workload import WorkloadSpec

SIZES = {"gemm": 400, "attention": 100, "dequant": 100, "rms": 60, "transpose": 100}
"""The least that a space of each kernel has."""


@asynccontextmanager
async def described(space: Space) -> AsyncIterator[tuple[LocalMachine, WorkloadSpec]]:
    reference = FileRef(str(FOLDER / space.file), space.name)
    machine = LocalMachine(reference, target="sm_90a", devices=(), compile=CompileSettings(workers=1, store=False))
    async with machine.open():
        yield machine, await machine.describe()


@pytest.mark.anyio
@pytest.mark.parametrize("name", SPACES)
async def test_a_space_has_the_size_that_is_told(name: str, anyio_backend: object) -> None:
    async with described(SPACES[name]) as (_, spec):
        assert spec.name == name
        assert len(spec.configs) == SPACES[name].total >= SIZES[name.partition("_")[0]]


def test_one_space_is_large() -> None:
    assert max(space.total for space in SPACES.values()) >= 2000


@pytest.mark.anyio
@pytest.mark.asked
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", SPACES)
async def test_kernels_spread_over_a_space_compile(name: str, anyio_backend: object) -> None:
    async with described(SPACES[name]) as (machine, spec):
        await machine.discover()
        worker = machine.compile_workers()[0]
        last = len(spec.configs) - 1
        configs = {i: thaw(spec.configs[i]) for i in (0, last // 2, last)}
        lowered = [
            await worker.run(LowerJob(Candidate(i, config_key(config), config))) for i, config in configs.items()
        ]
        kernels = [one for one in lowered if isinstance(one, Lowered)]
        assert len({one.code_key for one in kernels}) == 3, lowered
        for kernel in kernels:
            assert (kernel.facts.smem_bytes or 0) <= 227 * 1024, configs[kernel.index]
            [built] = await worker.run(BuildJob((kernel,)))
            assert isinstance(built, Artifact), built


@pytest.mark.parametrize("name", SPACES)
def test_a_recording_is_of_the_whole_space(name: str) -> None:
    path = FOLDER / f"{name}{SUFFIX}"
    assert path.stat().st_size < 4 << 20
    with opened(name) as journal:
        result = replay(journal)
    assert result.finished and result.total == SPACES[name].total and result.remaining == 0
    assert result.header is not None and result.header.origin == f"bench/spaces/{SPACES[name].file}:{SPACES[name].name}"


def test_names_of_spaces_are_read_without_torch() -> None:
    code = "import sys, spaces; assert not {'torch', 'tilelang'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, check=True, timeout=60)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
