"""Loading libraries, and the workload's file in workers: no deadline covers it, and a kill from outside is survived."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import pytest

from atune.errors import WorkerError
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.jobs import LowerJob
from atune.model.settings import CompileSettings
from atune.stages.loader import load
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.anyio

SOURCE = """
import os, signal, time
import atune
from pathlib import Path
from contract_kernels import inputs, scaled

{prologue}
WORK = atune.Workload(scaled, atune.Space(scale=[2.0]), inputs=inputs)
"""
COUNT = "mark = Path({mark!r})\nmark.write_text(mark.read_text() + 'x' if mark.exists() else 'x')\n"


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file with a letter for every time that the workload's file was run."""
    return tmp_path / "mark"


def machine_of(tmp_path: Path, mark: Path, prologue: str, monkeypatch: pytest.MonkeyPatch) -> LocalMachine:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    file = tmp_path / "work.py"
    file.write_text(SOURCE.format(prologue=COUNT.format(mark=str(mark)) + prologue))
    settings = CompileSettings(workers=1, compile_timeout_s=3.0, store=False)
    return LocalMachine(FileRef(str(file), "WORK"), target="c", devices=("all",), compile=settings)


def test_a_librarys_module_outlives_who_loaded_it(tmp_path: Path) -> None:
    """Two loads of a library share its handles, and those of the first launch are of one module alone."""
    (tmp_path / "f.c").write_text("int __tvm_ffi_f(void* self, void* args, int n, void* result) { return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "f.c", "-o", "f.so"], cwd=tmp_path, check=True)
    path = str(tmp_path / "f.so")
    launch = load(Artifact(0, path, "f", (), "cuda"))
    launch()
    del launch
    gc.collect()
    assert path in Path("/proc/self/maps").read_text()


async def test_loading_is_in_no_candidates_deadline(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(tmp_path, mark, "time.sleep(3.5)", monkeypatch)
    async with machine.open():
        await machine.discover()
        [worker] = machine.compile_workers()
        config = {"scale": 2.0}
        assert isinstance(await worker.run(LowerJob(Candidate(0, config_key(config), config))), Lowered)
    assert mark.read_text() == "x"


async def test_a_loading_worker_killed_from_outside_is_tried_once_more_and_then_lost(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is no mistake of the workload."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    machine = machine_of(tmp_path, mark, f"if len(mark.read_text()) == 1:\n    {kill}", monkeypatch)
    async with machine.open():
        assert len((await machine.describe()).configs) == 1 and mark.read_text() == "xx"
    mark.unlink()
    machine = machine_of(tmp_path, mark, kill, monkeypatch)
    async with machine.open():
        with pytest.raises(WorkerError, match=r"worker that loads .*work\.py:WORK was lost twice: killed by SIGKILL"):
            await machine.describe()
    assert mark.read_text() == "xx"
