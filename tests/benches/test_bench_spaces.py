"""The spaces of bench/spaces: their sizes, and that kernels spread over each compile, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from spaces import FOLDER, SPACES, SUFFIX, Space, opened

from atune.journal.reader import replay
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
