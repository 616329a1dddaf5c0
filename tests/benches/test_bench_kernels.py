"""The benchmarks' kernels compile for a GPU on a machine without one, and their scripts start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.jobs import BuildJob, LowerJob
from atune.model.settings import CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import FileRef

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.anyio
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("ref", "total", "chosen"),
    [
        ("kernels.py:FAULTY", 29, [0, 2, 5, 8, 11, 14, 17, 20, 23, 26]),
        ("kernels.py:SMALL", 1, [0]),
        ("kernels.py:LARGE", 1, [0]),
        ("kernels.py:EVEN", 128, [0]),
        ("attention.py:WORKLOAD", 27, [0, 8, 9, 18, 26]),
    ],
)
async def test_kernels_of_the_benchmarks_compile(
    ref: str, total: int, chosen: list[int], anyio_backend: object
) -> None:
    file, _, name = ref.partition(":")
    machine = LocalMachine(
        FileRef(str(BENCH / file), name), target="sm_90a", devices=(), compile=CompileSettings(workers=1)
    )
    async with machine.open():
        spec = await machine.describe()
        assert len(spec.configs) == total
        await machine.discover()
        worker = machine.compile_workers()[0]
        configs = [thaw(spec.configs[i]) for i in chosen]
        candidates = [Candidate(i, config_key(c), c) for i, c in zip(chosen, configs, strict=True)]
        lowered = [await worker.run(LowerJob(candidate)) for candidate in candidates]
        assert all(isinstance(one, Lowered) for one in lowered), lowered
        assert len({one.code_key for one in lowered if isinstance(one, Lowered)}) == len(chosen)
        groups: dict[str, list[Lowered]] = {}
        for one in lowered:
            if isinstance(one, Lowered):
                groups.setdefault(one.merge_key, []).append(one)
        for group in groups.values():
            built = await worker.run(BuildJob(tuple(group)))
            assert all(isinstance(one, Artifact) for one in built), built


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
