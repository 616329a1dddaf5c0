"""tilelang's backends for CUDA that build each candidate alone, and that everything asked for reaches the compiler."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atune import tune
from atune.errors import TargetError, UsageError
from atune.journal.events import ArtifactBuilt, Event, Warned
from atune.local.machine import LocalMachine
from atune.model.artifact import Artifact, Failure, Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages.measure.adapters import Cubin
from atune.system.cores import WORKER_BYTES
from atune.workload.workload import FileRef

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SOFTMAX = FileRef(str(ROOT / "examples" / "softmax.py"), "WORKLOAD")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
needs_cuda_python = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="the package cuda-python is not installed"
)

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
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    if shutil.which("gcc") and ctypes.util.find_library("cuda") is None:  # tilelang's adapter links the driver
        stub = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(tmp_path / "libcuda.so")]
        subprocess.run(stub, check=True)
        monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
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
        machine.accelerators(len(spec.configs))
        (worker,) = machine.compile_workers()
        built: list[Any] = []
        for i, config in enumerate(spec.configs):
            lowered = await worker.lower(Candidate(i, config_key(config), config))
            if isinstance(lowered, Lowered):
                [one] = await worker.build([lowered])
                data = Path(one.path).read_bytes() if isinstance(one, Artifact) else b""
                built.append((lowered, one, data))
            else:
                built.append((None, lowered, b""))
        return built


@pytest.mark.parametrize("name", ["torch", "ctypes", "cutedsl", "cuda"])
async def test_other_backends_are_refused_by_name(name: str) -> None:
    with pytest.raises(TargetError, match=rf"^backend '{name}' is .*; use auto, tvm_ffi \(CUDA\), cython"):
        CompileSettings(backend=name)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="target_host must be a text"):
        CompileSettings(target_host="")


async def test_nvrtc_is_for_cuda_and_needs_its_package(file: Path) -> None:
    with pytest.raises(TargetError, match="backend nvrtc compiles CUDA code"):
        await build_all(file, "CPU", "c", backend="nvrtc")
    if importlib.util.find_spec("cuda") is None:
        with pytest.raises(TargetError, match=r"needs the package cuda-python \(pip install cuda-python\)"):
            await build_all(file, backend="nvrtc")


@needs_nvcc
async def test_cython_builds_each_candidate_alone_as_tilelang_does(file: Path) -> None:
    built = await build_all(file, backend="cython", flags=("-DATUNE_MARK=1",), verbose=True)
    assert len({lowered.merge_key for lowered, _, _ in built}) == 3  # nothing could be grouped
    for _, one, data in built:
        assert isinstance(one, Artifact), one
        assert (one.backend, one.compiler, one.calls) == ("cython", "nvcc", (0, 1))
        assert data.startswith(b"\x7fELF") and b"get_last_error" in data
        command = next(line for line in one.words.splitlines() if "compile_lib compilation command" in line)
        assert "-DATUNE_MARK=1" in command and "--ptxas-options=--verbose" in command and "ptxas info" in one.words
        assert ("--use_fast_math" in command) == (one.index == 2)  # its own pass config, and no other's


@needs_nvcc
@needs_cuda_python
async def test_nvrtc_builds_each_candidate_alone_as_tilelang_does(file: Path) -> None:
    built = await build_all(file, backend="nvrtc")
    for _, one, data in built:
        assert isinstance(one, Artifact), one
        assert (one.backend, one.compiler, one.calls) == ("nvrtc", "nvrtc", (0, 1))
        packed = msgspec.msgpack.decode(data, type=Cubin)
        assert packed.cubin.startswith(b"\x7fELF") and packed.kernels == (f"{one.symbol}_kernel",)
        assert "cuLaunchKernelEx" in packed.launcher
    [(_, refused, _), *_] = await build_all(file, backend="nvrtc", flags=("--no-such-option",))
    assert isinstance(refused, Failure) and refused.kind == "compile"


@needs_nvcc
async def test_what_cythons_compiler_refuses_is_told_in_its_words(file: Path) -> None:
    [(_, refused, _), *_] = await build_all(file, backend="cython", flags=("--no-such-option",))
    assert isinstance(refused, Failure) and refused.kind == "compile"
    assert "no-such-option" in refused.message and len(refused.message) < 300


@needs_nvcc
async def test_flags_pass_configs_and_verbose_reach_nvcc_in_groups_too(file: Path) -> None:
    settings = {"flags": ("-DATUNE_MARK=1",), "pass_configs": {"tl.ptxas_register_usage_level": 5}, "verbose": True}
    for _, one, _ in await build_all(file, **settings):
        assert isinstance(one, Artifact) and not one.backend
        command = next(line for line in one.words.splitlines() if "NVCC compilation command" in line)
        assert "-DATUNE_MARK=1" in command and "--register-usage-level=5" in command
        assert ("--use_fast_math" in command) == (one.index == 2)
        assert "registers" in one.words
    [(_, quiet, _), *_] = await build_all(file, accelerate="off")
    assert isinstance(quiet, Artifact) and quiet.words == ""


async def test_flags_and_verbose_reach_gxx(file: Path) -> None:
    for _, one, _ in await build_all(file, "CPU", "c", flags=("-O1", "-DATUNE_MARK=1"), verbose=True):
        assert isinstance(one, Artifact) and "-O1 -DATUNE_MARK=1" in one.words


@needs_nvcc
async def test_the_host_target_reaches_tilelang(file: Path) -> None:
    [(given, one, _), *_] = await build_all(file, target_host="c", accelerate="off")
    [(default, _, _), *_] = await build_all(file, accelerate="off")
    assert isinstance(one, Artifact) and given.code_key != default.code_key
    [(_, refused, _), *_] = await build_all(file, target_host="no_such_host", accelerate="off")
    assert isinstance(refused, Failure) and refused.kind == "lower" and "no_such_host" in refused.message


async def test_why_compiling_goes_otherwise_is_in_the_events(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.local.machine.usable_memory_bytes", lambda: 2 * WORKER_BYTES)
    monkeypatch.setattr("atune.local.machine.usable_cores", lambda: sorted(os.sched_getaffinity(0)) * 4)
    settings = CompileSettings(backend="cython", store=False)
    machine = LocalMachine(FileRef(str(file), "WORK"), target="sm_90a", devices=(), compile=settings)
    async with machine.open():
        await machine.discover()
        assert len(machine.compile_workers()) == 2
        remarks: list[str] = []
        machine.on_warning(remarks.append)
        few, alone = remarks
    assert few.startswith("2 compile workers on ") and "2.0 GiB are free, with 1 GiB set aside for each" in few
    assert "backend cython compiles each candidate alone" in alone

    events: list[Event] = []
    await tune(f"{file}:CPU", target="c", benchmark=BenchmarkSettings(n_final=0), on_event=events.append)
    warned = [e.message for e in events if isinstance(e, Warned)]
    assert len(warned) == (len(os.sched_getaffinity(0)) * 4 - 1 > 2) and all("compile workers on" in w for w in warned)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cython", pytest.param("nvrtc", marks=needs_cuda_python)])
async def test_kernels_built_alone_run_and_are_right(file: Path, backend: Any, anyio_backend: str) -> None:
    events: list[Event] = []
    settings = CompileSettings(backend=backend, store=False)
    result = await tune(
        f"{file}:WORK", target="cuda", compile=settings, benchmark=BenchmarkSettings(benchmark_timeout_s=20.0),
        on_event=events.append,
    )  # fmt: skip
    assert (result.measured, result.failed) == (3, 0), result.table()
    assert any(f"backend {backend} compiles each candidate alone" in warning for warning in result.warnings)
    assert [len(e.indices) for e in events if isinstance(e, ArtifactBuilt)] == [1, 1, 1]
    import torch

    x = torch.arange(32, dtype=torch.float32, device="cuda")
    assert torch.equal(result.kernel(x), x * result.best_config["scale"])


def test_loading_without_a_gpu_is_a_clear_failure(tmp_path: Path) -> None:
    from atune.stages.measure.loader import LoadError, load

    bad = tmp_path / "bad.so"
    bad.write_bytes(b"no library")
    with pytest.raises(LoadError, match="cannot be loaded"):
        load(Artifact(0, str(bad), "K", (), "cuda", backend="cython"))
