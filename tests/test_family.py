"""Candidates that differ in the order of their blocks alone are lowered once, to the code that each would have."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atune.artifact import Lowered
from atune.candidate import Candidate, config_key
from atune.local import LocalBackend
from atune.settings import CompileSettings
from atune.workload import FileRef

GEMM = FileRef(str(Path(__file__).parents[1] / "examples" / "gemm.py"), "WORKLOAD")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

STAGED = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128}
PLAIN = {**STAGED, "num_stages": 0, "threads": 256}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def lowered(*configs: dict[str, Any]) -> tuple[list[Lowered], list[str]]:
    """Lower `configs` in one run, in order; return also the names of what its workers shared."""
    settings = CompileSettings(workers=1, store=False, compiler="nvcc")
    backend = LocalBackend(GEMM, target="sm_90a", devices=(), compile=settings)
    async with backend.open():
        await backend.discover()
        (lane,) = backend.compile_lanes()
        found = [await lane.lower(Candidate(i, config_key(c), c)) for i, c in enumerate(configs)]
        assert all(isinstance(one, Lowered) for one in found), found
        shared = [path.name for path in (Path(backend.run_dir) / "families").iterdir()]
        return [one for one in found if isinstance(one, Lowered)], shared


@needs_nvcc
@pytest.mark.anyio
async def test_relatives_have_the_code_that_lowering_them_gives() -> None:
    on, off = {"swizzle": True}, {"swizzle": False}
    first, shared = await lowered({**STAGED, **on}, {**STAGED, **off}, {**PLAIN, **on}, {**PLAIN, **off})
    assert "checked" in shared and "doubted" not in shared
    assert len(shared) == 3  # two families, and that the first derived one was checked
    assert len({one.code_key for one in first}) == 4
    # Without the annotation nothing tells where it belongs: then both are lowered.
    second, shared = await lowered({**STAGED, **off}, {**STAGED, **on}, {**PLAIN, **off})
    assert "checked" not in shared
    assert [one.code_key for one in second] == [first[i].code_key for i in (1, 0, 3)]
    assert [one.facts for one in second] == [first[i].facts for i in (1, 0, 3)]
    assert [one.params for one in second] == [first[i].params for i in (1, 0, 3)]


DOUBT = """
import sys
from pathlib import Path
import tilelang
import tilelang.language as T
from atune.stages.family import Families

def kernel(panel):
    @T.prim_func
    def main(x: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            if panel:
                T.use_swizzle(panel)
            for i in T.Parallel(32):
                x[i] = x[i] * 2.0
    return main

calls = []
def lower(panel):
    function = kernel(panel).with_attr("global_symbol", f"symbol_{panel}")
    modules = tilelang.tvm.IRModule({"host": function}), tilelang.tvm.IRModule({f"symbol_{panel}": function})
    def lowering():
        calls.append(panel)
        return modules
    text = lambda host, device: (str(device), panel if device is modules[1] else None)
    host, device = Families(sys.argv[1], "").lowered(function, f"symbol_{panel}", lowering, text)
    assert device is modules[1] or "threadblock" in str(device)

for panel in (4, 8, 4, 16):
    lower(panel)
assert calls == [4, 8, 4, 16], calls
assert {p.name for p in Path(sys.argv[1]).iterdir()} >= {"doubted"}
"""


def test_where_the_first_check_fails_every_candidate_is_lowered(tmp_path: Path) -> None:
    script = tmp_path / "doubt.py"  # tilelang reads a kernel's source
    script.write_text(DOUBT)
    command = [sys.executable, str(script), str(tmp_path / "families")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
