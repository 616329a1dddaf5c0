"""Candidates that differ in the order of their blocks alone are lowered once, to the code that each would have."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from atune.local.backend import LocalBackend
from atune.model.artifact import Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.settings import CompileSettings
from atune.workload.workload import FileRef

GEMM = FileRef(str(Path(__file__).parents[3] / "examples" / "gemm.py"), "WORKLOAD")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

STAGED = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128}
PLAIN = {**STAGED, "num_stages": 0, "threads": 256}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def lowered(*configs: dict[str, Any], at_once: bool = False) -> tuple[list[Lowered], list[str]]:
    """Lower `configs` in one run, in order, or each by a worker; return also the names of what its workers shared."""
    settings = CompileSettings(workers=len(configs) if at_once else 1, store=False, compiler="nvcc")
    backend = LocalBackend(GEMM, target="sm_90a", devices=(), compile=settings)
    async with backend.open():
        await backend.discover()
        lanes = backend.compile_lanes()
        answers: dict[int, Any] = {}

        async def lower(index: int) -> None:
            candidate = Candidate(index, config_key(configs[index]), configs[index])
            answers[index] = await lanes[index % len(lanes)].lower(candidate)

        async with anyio.create_task_group() as tasks:
            for index in range(len(configs)):
                if at_once:
                    tasks.start_soon(lower, index)
                else:
                    await lower(index)
        found = [answers[index] for index in range(len(configs))]
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
    assert "checked" in shared  # against each other
    assert [one.code_key for one in second] == [first[i].code_key for i in (1, 0, 3)]
    assert [one.facts for one in second] == [first[i].facts for i in (1, 0, 3)]
    assert [one.params for one in second] == [first[i].params for i in (1, 0, 3)]


@needs_nvcc
@pytest.mark.anyio
@pytest.mark.slow
async def test_two_workers_that_lower_relatives_at_once_have_the_code_of_each_alone() -> None:
    """Whoever ends second compares both; when they end at the same moment, nobody does."""
    on, off = {**STAGED, "swizzle": True}, {**STAGED, "swizzle": False}
    both, shared = await lowered(on, off, at_once=True)
    assert "doubted" not in shared
    alone = [(await lowered(config))[0][0].code_key for config in (on, off)]
    assert [one.code_key for one in both] == alone


DOUBT = """
import sys
from pathlib import Path
import tilelang
import tilelang.language as T
from atune.stages.accelerators.family import Families, Modules, split

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
    module = tilelang.tvm.IRModule({f"symbol_{panel}": function})
    json = str(tilelang.tvm.ir.save_json(module))
    def lowering():
        calls.append(panel)
        return Modules(None, json, json, module, "", f"as lowering prints it, {panel}")
    found = Families(sys.argv[1], "", str).lowered(*split(function), f"symbol_{panel}", lowering)
    assert found.device is module or "threadblock" in str(found.device)

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
