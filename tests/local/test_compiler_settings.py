"""Everything asked for reaches the compiler: flags, pass configuration, host target, verbosity."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from atune import tune
from atune.journal.events import Event, Warned
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.jobs import BuildJob, LowerJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workers.system.resources import WORKER_BYTES
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


async def build_all(file: Path, name: str = "WORK", target: str = "sm_90a", **settings: Any) -> list[Any]:
    """Lower and build every candidate of a workload by itself."""
    compile = CompileSettings(workers=1, store=False, **settings)
    machine = LocalMachine(FileRef(str(file), name), target=target, devices=(), compile=compile)
    async with machine.open():
        spec = await machine.describe()
        await machine.discover()
        await machine.accelerators(len(spec.configs))
        (worker,) = machine.compile_workers()
        built: list[Any] = []
        for i, config in enumerate(spec.configs):
            lowered = await worker.run(LowerJob(Candidate(i, config_key(config), config)))
            if isinstance(lowered, Lowered):
                [one] = await worker.run(BuildJob((lowered,)))
                data = Path(one.path).read_bytes() if isinstance(one, Artifact) else b""
                built.append((lowered, one, data))
            else:
                built.append((None, lowered, b""))
        return built


@needs_nvcc
async def test_flags_pass_configs_and_verbose_reach_nvcc_in_groups_too(file: Path) -> None:
    settings = {"flags": ("-DATUNE_MARK=1",), "pass_configs": {"tl.ptxas_register_usage_level": 5}, "verbose": True}
    for _, one, _ in await build_all(file, **settings):
        assert isinstance(one, Artifact)
        command = next(line for line in one.compiler_output.splitlines() if "NVCC compilation command" in line)
        assert "-DATUNE_MARK=1" in command and "--register-usage-level=5" in command
        assert ("--use_fast_math" in command) == (one.index == 2)
        assert "registers" in one.compiler_output
    [(_, quiet, _), *_] = await build_all(file, accelerate="off")
    assert isinstance(quiet, Artifact) and quiet.compiler_output == ""


async def test_flags_and_verbose_reach_gxx(file: Path) -> None:
    for _, one, _ in await build_all(file, "CPU", "c", flags=("-O1", "-DATUNE_MARK=1"), verbose=True):
        assert isinstance(one, Artifact) and "-O1 -DATUNE_MARK=1" in one.compiler_output


@needs_nvcc
async def test_the_host_target_reaches_tilelang(file: Path) -> None:
    [(given, one, _), *_] = await build_all(file, target_host="c", accelerate="off")
    [(default, _, _), *_] = await build_all(file, accelerate="off")
    assert isinstance(one, Artifact) and given.code_key != default.code_key


async def test_why_compiling_goes_otherwise_is_in_the_events(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.workers.local.machine.usable_memory_bytes", lambda: 2 * WORKER_BYTES)
    monkeypatch.setattr("atune.workers.local.machine.usable_cores", lambda: sorted(os.sched_getaffinity(0)) * 4)
    settings = CompileSettings(store=False)
    machine = LocalMachine(FileRef(str(file), "WORK"), target="sm_90a", devices=(), compile=settings)
    warned_of: list[str] = []
    async with machine.open(warned_of.append):
        await machine.discover()
        assert len(machine.compile_workers()) == 2
        (few,) = warned_of
    assert few.startswith("2 compile workers on ") and "2.0 GiB are free, with 1 GiB set aside for each" in few

    events: list[Event] = []
    await tune(f"{file}:CPU", target="c", benchmark=BenchmarkSettings(n_final=0), on_event=events.append)
    warned = [e.message for e in events if isinstance(e, Warned)]
    assert len(warned) == (len(os.sched_getaffinity(0)) * 4 - 1 > 2) and all("compile workers on" in w for w in warned)
