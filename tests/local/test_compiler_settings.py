"""Everything asked for reaches the compiler: flags, pass configuration, host target."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from services import artifacts, lowered_by

from atune.model.artifact import Built, Failure
from atune.model.jobs import BuildJob
from atune.model.settings import CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SOFTMAX = FileRef(str(ROOT / "examples" / "softmax.py"), "WORKLOAD")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

SOURCE = """
import atune
from contract_kernels import inputs, reference, scaled
WORK = atune.Workload(
    scaled, [{"scale": 2.0}, {"scale": 3.0}, {"scale": 4.0, "pass_configs": {"tl.enable_fast_math": True}}],
    arguments={"threads": 32}, inputs=inputs,
)
CPU = atune.Workload(scaled, [{"scale": 2.0}, {"scale": 3.0}], inputs=inputs, reference=reference)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    found = tmp_path / "work.py"
    found.write_text(SOURCE)
    return found


async def answered(file: Path, name: str = "WORK", target: str = "sm_90a", **settings: Any) -> list[Built]:
    """Lower and build every candidate of a workload by itself."""
    compile = CompileSettings(workers=1, store=False, **settings)
    machine = LocalMachine(FileRef(str(file), name), target=target, devices=(), compile=compile)
    async with machine.open():
        spec = await machine.describe()
        await machine.discover()
        await machine.prepare(len(spec.configs))
        [worker, *_] = machine.compile_workers()
        return [(await worker.run(BuildJob((one,))))[0] for one in await lowered_by(worker, *spec.configs)]


@needs_nvcc
async def test_flags_and_pass_configs_reach_nvcc(file: Path) -> None:
    settings = {"flags": ("--no-such-flag",), "pass_configs": {"tl.ptxas_register_usage_level": 5}}
    for one in await answered(file, **settings):
        assert isinstance(one, Failure) and one.kind == "compile"
        assert "--no-such-flag" in one.detail and "--register-usage-level=5" in one.detail
        assert ("--use_fast_math" in one.detail) == (one.index == 2)


async def test_flags_reach_gxx(file: Path) -> None:
    for one in await answered(file, "CPU", "c", flags=("-O1", "--no-such-flag")):
        assert isinstance(one, Failure) and "-O1 --no-such-flag" in one.detail


@needs_nvcc
async def test_the_host_target_reaches_tilelang(file: Path) -> None:
    [given, *_] = artifacts(await answered(file, target_host="c", cicc=False))
    [default, *_] = artifacts(await answered(file, cicc=False))
    assert given.store_key != default.store_key
