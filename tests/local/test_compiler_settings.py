"""Everything asked for reaches the compiler: flags, pass configuration, host target, verbosity."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from services import built_by

from atune.model.artifact import Artifact
from atune.model.settings import CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import FileRef

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


async def build_all(file: Path, name: str = "WORK", target: str = "sm_90a", **settings: Any) -> list[Artifact]:
    """Lower and build every candidate of a workload by itself."""
    compile = CompileSettings(workers=1, store=False, **settings)
    machine = LocalMachine(FileRef(str(file), name), target=target, devices=(), compile=compile)
    async with machine.open():
        spec = await machine.describe()
        await machine.discover()
        await machine.accelerators(len(spec.configs))
        return await built_by(machine.compile_workers()[0], *spec.configs)


@needs_nvcc
async def test_flags_pass_configs_and_verbose_reach_nvcc_in_groups_too(file: Path) -> None:
    settings = {"flags": ("-DATUNE_MARK=1",), "pass_configs": {"tl.ptxas_register_usage_level": 5}, "verbose": True}
    for one in await build_all(file, **settings):
        command = next(line for line in one.compiler_output.splitlines() if "NVCC compilation command" in line)
        assert "-DATUNE_MARK=1" in command and "--register-usage-level=5" in command
        assert ("--use_fast_math" in command) == (one.index == 2)
        assert "registers" in one.compiler_output
    [quiet, *_] = await build_all(file, accelerate="off")
    assert quiet.compiler_output == ""


async def test_flags_and_verbose_reach_gxx(file: Path) -> None:
    for one in await build_all(file, "CPU", "c", flags=("-O1", "-DATUNE_MARK=1"), verbose=True):
        assert "-O1 -DATUNE_MARK=1" in one.compiler_output


@needs_nvcc
async def test_the_host_target_reaches_tilelang(file: Path) -> None:
    [given, *_] = await build_all(file, target_host="c", accelerate="off")
    [default, *_] = await build_all(file, accelerate="off")
    assert given.store_key != default.store_key
