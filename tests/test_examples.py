"""The examples run: on the CPU whole, on CUDA as far as a machine without a GPU can, which is to the library."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import environment
from programs import printed_by

from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, with_tuples
from atune.model.jobs import BuildJob, LowerJob
from atune.model.settings import CompileSettings
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def test_decorated_cpu_runs_as_a_script(tmp_path: Path) -> None:
    """In the next program its results would come from the result cache: test_autotune runs a script again."""
    script = str(EXAMPLES / "decorated_cpu.py")
    output = printed_by([script], tmp_path, {**environment(), "TMPDIR": str(tmp_path)})[script]
    said = [line for line in output.splitlines() if "candidates" in line]
    assert len(said) == 2 and all("block_M" in line for line in said) and "Traceback" not in output, output


def test_a_loop_of_judged_proposals_keeps_a_faster_kernel(tmp_path: Path) -> None:
    script = str(EXAMPLES / "measure_loop.py")
    command, env = [sys.executable, script], {**environment(), "TMPDIR": str(tmp_path)}
    output = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, timeout=170).stdout
    latencies = [float(ms) for ms in re.findall(r"^0 passed ([\d.]+) ms", output, re.MULTILINE)]
    assert len(re.findall("^[01] wrong None", output, re.MULTILINE)) == 2, output
    assert len(latencies) == 4 and min(latencies) < latencies[0], output
    assert "TILE_M, TILE_N, TILE_K = 4, 4, 4" not in output and output.count("def gemm_cpu") == 1, output


@pytest.mark.anyio
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("name", "total"), [("gemm", 288), ("gemm_roller", 20), ("layout_broadcast", 72)])
async def test_cuda_examples_compile(name: str, total: int, anyio_backend: str) -> None:
    """Two candidates of each are lowered for sm_90a and built into one library; the roller's kernel is gemm's."""
    machine = LocalMachine(
        FileRef(str(EXAMPLES / f"{name}.py"), "UNEVEN" if name == "layout_broadcast" else "WORKLOAD"),
        target="sm_90a",
        devices=(),
        compile=CompileSettings(workers=1),
    )
    async with machine.open():
        spec = await machine.describe()
        if name == "gemm_roller":  # described, the GPU gives what the roller recommends on it
            assert tuple(with_tuples(spec.configs[0]).values()) == (64, 128, 32, 2, 128, True)
        assert len(spec.configs) == total and spec.default is not None
        await machine.discover()
        worker = machine.compile_workers()[0]
        candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(map(with_tuples, spec.configs))]
        lowered = [await worker.run(LowerJob(candidate)) for candidate in candidates[:2]]
        assert all(isinstance(one, Lowered) for one in lowered), lowered
        if name == "gemm_roller":
            return
        built = await worker.run(BuildJob(tuple(one for one in lowered if isinstance(one, Lowered))))
        assert all(isinstance(one, Artifact) for one in built), built
        assert len({one.path for one in built if isinstance(one, Artifact)}) == 1
        assert len({one.symbol for one in built if isinstance(one, Artifact)}) == 2


def test_one_gpu_and_several_are_not_asked_for_at_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    with pytest.raises(SystemExit):
        importlib.import_module("gemm").options(["--no-benchmark-multi-gpu", *("--benchmark-devices", "0") * 2])
    message = "--no-benchmark-multi-gpu measures on one GPU, so name at most one with --benchmark-devices"
    assert message in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gemm", "gemm_roller", "softmax", "layout_broadcast"])
def test_cuda_examples_run_as_scripts(name: str, tmp_path: Path) -> None:
    command, env = [sys.executable, str(EXAMPLES / f"{name}.py")], {**environment(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
