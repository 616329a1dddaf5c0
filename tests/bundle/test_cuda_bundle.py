"""Bundles for CUDA: what they hold, how they load without tilelang, and, on a GPU, what they compute.

On a machine with a GPU: ``pytest tests/bundle/test_cuda_bundle.py``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import fake_cuda
import msgspec
import pytest
from event_streams import Stream
from programs import python

import atune
from atune.bundle.launch import TENSORMAP
from atune.errors import UsageError
from atune.frontends import save_bundle as writer
from atune.frontends.autotuned import with_library
from atune.journal.events import RunStarted
from atune.journal.result import Result
from atune.model.artifact import Artifact, Roles
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.results import save_bundle
from atune.workers.artifact_store import ArtifactStore

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
SM_90A = Target("cuda", "sm_90a")

WITHOUT = """
import sys
sys.modules["tilelang"] = None
"""
LOADS = """
import re, sys
import torch
torch.cuda.is_available = lambda: True
from atune.bundle import WrongArguments, load
from atune.bundle.launch import cuda_function
bundle = load(sys.argv[1])
A = torch.zeros(512, 512, dtype=torch.float16)
try:
    bundle(A, A)
except WrongArguments as error:
    print(error)
[one] = bundle.manifest["problems"]
function = cuda_function(bundle._libraries, f"{one['library']}.so", one["symbol"])
try:
    function(A, A, A)
except RuntimeError as error:
    print(error)
print(*sorted(set(re.findall(r"\\S+[/:]libtvm_runtime.so", open("/proc/self/maps").read()))))
"""
SERVE = """
import sys, time
import torch
(torch.ones(4, device="cuda") + 1).sum().item()
from atune.bundle import OutsideProblems, WrongArguments, load
bundle = load(sys.argv[1])
for M in (256, 512):
    A, B = (torch.randn(n, m, dtype=torch.float16, device="cuda") for n, m in ((M, 512), (512, 512)))
    torch.cuda.synchronize()
    started = time.perf_counter()
    C = bundle(A, B)
    seconds = time.perf_counter() - started
    torch.testing.assert_close(C, A @ B, rtol=1e-2, atol=1e-1)
    assert seconds < 0.05, f"the first call took {seconds} s"
bundle(A, B, out := torch.empty_like(C))
assert torch.equal(out, C)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    again = bundle(A, B)
stream.synchronize()
assert torch.equal(again, C)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = bundle(A, B)
A.copy_(torch.randn_like(A))
graph.replay()
torch.testing.assert_close(captured, A @ B, rtol=1e-2, atol=1e-1)
for wrong, error in ((A.cpu(), WrongArguments), (A.float(), WrongArguments), (A[:100], OutsideProblems)):
    try:
        bundle(wrong, B)
    except error as raised:
        print(raised)
    else:
        raise SystemExit(f"no {error}")
print("served")
"""


def matmul(M: int, N: int = 512, K: int = 512, block: int = 64) -> Any:
    import tilelang.language as T

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, block), threads=128) as (bx, by):
            a, b = T.alloc_shared((block, 32), "float16"), T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((block, 64), "float")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * block, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * 64])

    return main


def on_a_gpu(M: int) -> Result:
    """Return a result for sm_90a, as a run on a GPU would have it, with a library that is compiled here."""

    def kept(artifact: Artifact | None) -> Artifact:
        assert artifact is not None
        return ArtifactStore().keep(artifact)

    work = atune.Workload(matmul, [{"block": 64}], arguments={"M": M})
    artifact = with_library(work, SM_90A, CompileSettings(), kept)
    stream = Stream(total=1)
    header = stream.events[0]
    assert isinstance(header, RunStarted)
    stream.events[0] = msgspec.structs.replace(header, target=SM_90A, arguments={"M": M})
    stream.ready().candidate(0, 1.0, block=64)
    stream.finished(kernel=artifact, roles=Roles((len(artifact.params) - 1,)))
    return Result.from_events(stream.events)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle of one problem."""
    folder = tmp_path_factory.mktemp("bundle") / "b"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        save_bundle(folder, [on_a_gpu(512)])
        yield folder


def run(code: str, folder: Path, **env: str) -> str:
    done = python("-c", code, folder, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_nvcc
def test_it_holds_the_runtime_with_licences_and_the_range_of_tvm_ffi(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert (manifest["target"], manifest["arch"], manifest["cpu"]["features"]) == ("cuda", "sm_90a", [])
    names = {path.name for path in (bundle / "runtime").iterdir()}
    assert {f"runtime/{name}" for name in names} < manifest["files"].keys()
    assert {"libtvm_runtime.so", TENSORMAP, "libstub_cuda.so", "libstub_cudart.so", "LICENSE.tilelang"} <= names
    asked = [one for one in metadata.requires("tilelang") or () if one.startswith("apache-tvm-ffi")]
    assert [f"apache-tvm-ffi{manifest['requires']['apache-tvm-ffi']}"] == asked


@needs_nvcc
def test_it_loads_without_tilelang_by_its_own_runtime(bundle: Path) -> None:
    first, second, loaded = run(WITHOUT + LOADS, bundle, PATH="/nowhere").splitlines()
    assert first == "parameter 0: the kernel takes tensors on cuda; got a tensor on cpu"
    assert re.search("device_type mismatch, expected cuda", second)
    assert loaded == "/memfd:libtvm_runtime.so"  # what was compared with its digest


@needs_nvcc
def test_where_tilelang_is_installed_its_runtime_serves_both(bundle: Path) -> None:
    *_, loaded = run(f"{LOADS}\nimport tilelang\nprint(tilelang.__file__)", bundle).splitlines()
    [runtime] = run(f"import tilelang\n{LOADS}", bundle).splitlines()[2:]
    assert Path(runtime).parent.parent == Path(loaded).parent


CALLS = """
import json, sys
from pathlib import Path
import torch, tvm_ffi
from fake_cuda import FakeTensor
folder = Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
[one] = manifest["problems"]
tensors = [FakeTensor(n << 30, (512, 512)) for n in (1, 2, 3)]
loaded(folder, manifest["files"], one)(*map(tvm_ffi.from_dlpack, tensors))
"""
BY_ATUNE = """
from atune.bundle.launch import Libraries, cuda_function
loaded = lambda folder, files, one: cuda_function(Libraries(folder, files), f"{one['library']}.so", one["symbol"])
"""
BY_TILELANG = """
from tilelang import tvm
loaded = lambda folder, _, one: tvm.runtime.load_module(str(folder / f"{one['library']}.so"))[one["symbol"]]
"""


@needs_nvcc
def test_a_call_asks_the_driver_for_what_tilelang_asks(bundle: Path, tmp_path: Path) -> None:
    """The whole of the host's code: the descriptors of both inputs, and the launch, by a driver that does nothing."""
    fake_cuda.install(tmp_path, bundle / "runtime")
    ours = run(WITHOUT + BY_ATUNE + CALLS, bundle, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert ours == run(BY_TILELANG + CALLS, bundle, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert [line.split()[0] for line in ours] == ["encode", "encode", "launch"]
    assert " 0x40000000 " in ours[0] and " 0x80000000 " in ours[1] and ours[2].startswith("launch 8 8 1 with ")


def test_a_kernel_that_needs_more_of_tilelang_is_refused() -> None:
    writer._check_calls(b"\0__tvm_ffi_main\0__tvm_set_device_packed\0__tvm_tensormap_create_tiled\0")
    with pytest.raises(UsageError, match="calls tilelang's __tvm_tensormap_create_im2col, which a bundle lacks"):
        writer._check_calls(b"\0__tvm_set_device\0__tvm_tensormap_create_im2col\0")


@pytest.mark.gpu
def test_on_a_gpu_it_serves_without_tilelang_and_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    found = [
        atune.run(atune.Workload(matmul, {"block": [64, 128]}, arguments={"M": M}, out_idx=-1), target="cuda")
        for M in (256, 512)
    ]
    save_bundle(tmp_path / "b", found)
    assert run(WITHOUT + SERVE, tmp_path / "b", PATH="/nowhere").endswith("served\n")
