"""cicc on every kernel of a small corpus: the sources and the code are those of nvcc."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage_runs import session_of

from atune.model.artifact import Artifact
from atune.stages import cicc, elf
from atune.stages.cicc import difference
from atune.stages.cicc_server import Server
from atune.stages.codegen import Compile, build, by_nvcc
from atune.stages.lowering import lower
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
KERNELS = Path(__file__).parents[2] / "accelerated_kernels.py"
CORPUS = ("GEMM", "ADD", "ROWS")


def made(name: str, run_dir: Path, compile: Compile) -> list[Artifact]:
    """Lower and build the candidates of workload `name` as one group."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with session_of(FileRef(str(KERNELS), name), run_dir) as candidates:
        return build([lower(candidate) for candidate in candidates], str(run_dir / "group.so"), compile)


@pytest.mark.parametrize("name", CORPUS)
def test_sources_and_code_are_the_plain_ones(name: str, hopper_server: Server, tmp_path: Path) -> None:
    plain = made(name, tmp_path / "plain", by_nvcc)
    (tmp_path / "cicc").mkdir()
    hopper_server.link(str(tmp_path / "cicc"))
    built = made(name, tmp_path / "cicc", cicc.compile)
    assert {one.compiler for one in built} == {"cicc"} and {one.compiler for one in plain} == {"nvcc"}
    assert not any(one.plain for one in built) and all(one.plain for one in plain)
    for one, other in zip(built, plain, strict=True):
        assert one.source_key == other.source_key
        assert elf.kernels_code(Path(other.path).read_bytes(), other.symbol)
        assert difference(one, other) == ""
