"""The benchmarks' kernels compile for a GPU on a machine without one, and their scripts start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atune.local.machine import LocalMachine
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.settings import CompileSettings
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
        assert len(spec.configs) == total and spec.has_reference
        await machine.discover()
        worker = machine.compile_workers()[0]
        configs = [thaw(spec.configs[i]) for i in chosen]
        candidates = [Candidate(i, config_key(c), c) for i, c in zip(chosen, configs, strict=True)]
        lowered = [await worker.lower(candidate) for candidate in candidates]
        assert all(isinstance(one, Lowered) for one in lowered), lowered
        assert len({one.code_key for one in lowered if isinstance(one, Lowered)}) == len(chosen)
        groups: dict[str, list[Lowered]] = {}
        for one in lowered:
            if isinstance(one, Lowered):
                groups.setdefault(one.merge_key, []).append(one)
        for group in groups.values():
            built = await worker.build(group)
            assert all(isinstance(one, Artifact) for one in built), built


@pytest.mark.parametrize(
    "script",
    ["effort.py", "faults.py", "fidelity.py", "noise.py", "reproducible.py", "scaling.py", "second_tune.py"],
)
def test_scripts_tell_what_they_take(script: str) -> None:
    command = [sys.executable, str(BENCH / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout and "--limit" in done.stdout


@pytest.mark.parametrize(
    "script", ["compat.py", "compile_stages.py", "crash.py", "journal.py", "overhead.py", "record.py", "vs_tilelang.py"]
)
def test_scripts_explain_themselves(script: str) -> None:
    done = subprocess.run([sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
