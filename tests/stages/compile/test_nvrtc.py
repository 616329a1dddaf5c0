"""NVRTC with a precompiled header: chosen by cost, used where it is there, never in nvcc's way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from services import SOFTMAX, artifacts, given_up, lowered

from atune.local.backend import LocalBackend
from atune.local.compiler_choice import CompileCosts, choose, estimate
from atune.model.artifact import Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.settings import CompileSettings
from atune.stages.compile import device_source

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@needs_nvcc
@pytest.mark.anyio
async def test_a_group_is_compiled_with_the_header() -> None:
    pytest.importorskip("nvidia.cu13", reason="the pip package nvidia-cuda-nvrtc is not installed")
    async with lowered(3, CompileSettings(workers=1, compiler="nvrtc")) as (_, lane, group):
        built = artifacts(list(await lane.build(group)))
        assert [one.compiler for one in built] == ["nvrtc"] * 3
        assert len({one.path for one in built}) == 1
        assert "as asked; headers parsed in" in built[0].why and not built[0].exact
        library = Path(built[0].path).read_bytes()
        assert all(f"{one.symbol}_kernel".encode() in library for one in built)


@needs_nvcc
@pytest.mark.anyio
async def test_without_the_service_nvcc_takes_over_and_says_why() -> None:
    pytest.importorskip("nvidia.cu13", reason="the pip package nvidia-cuda-nvrtc is not installed")
    async with lowered(1, CompileSettings(workers=1, compiler="nvrtc")) as (backend, lane, group):
        assert backend.service.compiler
        service = backend.service.pid
        os.killpg(service, signal.SIGKILL)
        with anyio.fail_after(5):
            while backend.service.compiler:
                await anyio.sleep(0.01)
        (built,) = artifacts(list(await lane.build(group)))
        assert built.compiler == "nvcc"
        assert "SIGKILL" in built.why


@needs_nvcc
@pytest.mark.anyio
async def test_flags_are_for_nvcc() -> None:
    settings = CompileSettings(workers=1, compiler="nvrtc", flags=("-DATUNE_TEST=1",))
    async with lowered(1, settings) as (_, lane, group):
        (built,) = artifacts(list(await lane.build(group)))
        assert built.compiler == "nvcc"
        assert "compile flags are for nvcc" in built.why


@needs_nvcc
@pytest.mark.anyio
async def test_a_compile_that_is_given_up_ends() -> None:
    """The child compiles in native code, in no group of the lane's; it ends with the one who asked."""
    pytest.importorskip("nvidia.cu13", reason="the pip package nvidia-cuda-nvrtc is not installed")
    async with lowered(2, CompileSettings(workers=1, compiler="nvrtc")) as (backend, lane, group):
        await given_up(lane, group, backend.service.pid)
        assert backend.service.compiler
        (built, _) = artifacts(list(await lane.build(group)))
        assert built.compiler == "nvrtc"


SAME = """
import sys
from atune.stages.accelerators import nvrtc
from atune.stages.accelerators import service
from atune.stages.compile.device_source import Flavour, guess

flavour, source = Flavour("sm_90a"), sys.stdin.read()
assert nvrtc.make(flavour, guess("sm_90a")) > 0
with_header = nvrtc.compile_here(source, flavour)
del nvrtc._service.prefixes[flavour]
assert with_header == nvrtc.compile_here(source, flavour), "the header changes the code"
assert not {"tilelang", "torch"} & sys.modules.keys(), "the service is to start before these are imported"
"""
INCLUDES = "".join(f"#include <tl_templates/cuda/{name}>\n" for name in ("reduce.h", "ldsm.h", "debug.h"))
SOURCE = (
    "#include <math_constants.h>\n"
    + INCLUDES
    + """
extern "C" __global__ void __launch_bounds__(128) sums(float* x) {
  __shared__ float part[128];
  float sum[1] = {x[threadIdx.x]};
  sum[0] = tl::AllReduce<tl::SumOp, 128, 1, 0>::run(sum[0], part);
  x[threadIdx.x] = sum[0];
}
"""
)


@needs_nvcc
def test_the_header_changes_no_code_and_needs_no_kernel() -> None:
    """It is made ahead of the kernels, of headers that they mostly include, by a process that imports little."""
    pytest.importorskip("nvidia.cu13", reason="the pip package nvidia-cuda-nvrtc is not installed")
    done = subprocess.run([sys.executable, "-c", SAME], input=SOURCE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", True),
        ("#include <math_constants.h>\n\n", True),
        (device_source.MICROSOFT, True),
        ("#define WARP 16\n", False),
        ("__device__ float twice(float x) { return 2 * x; }\n", False),
        ("#if 1\n#define WARP 16\n#endif\n", False),
    ],
)
def test_what_stands_before_tilelangs_headers_stays_there(before: str, expected: bool) -> None:
    assert device_source.plain(before + INCLUDES + "int x;\n") == expected


def test_the_choice_follows_the_costs() -> None:
    costs = CompileCosts()
    assert choose(288, 15, costs)[0] == "cicc"
    assert choose(48, 2, costs)[0] == "cicc"
    assert choose(1, 1, costs)[0] == "nvcc"
    slow = msgspec.structs.replace(costs, header_s=4.0)
    assert choose(15, 15, slow)[0] == "nvcc"  # one group each: all would wait for the headers
    _, why = choose(288, 15, costs)
    assert "288 candidates on 15 workers" in why
    assert choose(2, 1, CompileCosts(header_s=0.0))[0] == "cicc"


def test_costs_scale_with_the_machine() -> None:
    slow = CompileCosts().scaled(CompileCosts().lower_s * 2)
    fast_estimate, slow_estimate = estimate(288, 15, CompileCosts()), estimate(288, 15, slow)
    assert slow_estimate == pytest.approx([2 * seconds for seconds in fast_estimate])


def test_more_candidates_never_take_less_time() -> None:
    for lanes in (1, 7, 15):
        estimates = [estimate(n, lanes, CompileCosts())[0] for n in range(1, 400)]
        assert estimates == sorted(estimates)


@pytest.mark.slow  # test_finalists and test_store have both halves, with other compilers
@pytest.mark.anyio
@needs_nvcc
async def test_nvcc_compiles_again_what_nvrtc_did_and_the_store_has_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the final: nvcc's library of the same code, and with it only until the next run finds it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = CompileSettings(workers=1, compiler="nvrtc")
    for first in (True, False):
        backend = LocalBackend(SOFTMAX, target="sm_90a", devices=(), compile=settings)
        async with backend.open():
            spec = await backend.describe()
            await backend.discover()
            (lane,) = backend.compile_lanes(len(spec.configs))
            candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(map(thaw, spec.configs[:2]))]
            found = [await lane.lower(candidate) for candidate in candidates]
            kept = [await lane.find(one) for one in found if isinstance(one, Lowered)]
            assert [one is None for one in kept] == [first] * 2
            if first:
                with anyio.fail_after(60):
                    while backend.service.warming:
                        await anyio.sleep(0.05)
                assert backend.service.compiler, backend.service.why
                built = await lane.build([one for one in found if isinstance(one, Lowered)])
                kept = [*artifacts([*built])]
            known = {one.index: one for one in found if isinstance(one, Lowered)} if first else {}
            again = artifacts([*await lane.as_tilelang(candidates, known)])
            assert [one.compiler for one in kept if one] == ["nvrtc"] * 2
            assert [one.compiler for one in again] == ["nvcc"] * 2 and all(one.exact for one in again)
            assert [Path(one.path).is_relative_to(tmp_path) for one in again] == [not first] * 2
            assert {one.symbol for one in again} == {one.symbol for one in kept if one}
