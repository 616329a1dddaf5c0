"""Every accelerator on every kernel of a small corpus: the sources and the code are those of the plain steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage_runs import session_of

from atune.model.artifact import Artifact, Lowered
from atune.model.settings import ACCELERATORS
from atune.stages.accelerators import registry
from atune.stages.accelerators.cicc_server import Server
from atune.stages.compile import elf
from atune.stages.compile.codegen import build
from atune.stages.compile.lowering import lower
from atune.stages.compile_jobs import difference
from atune.workload.workload import FileRef

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
KERNELS = Path(__file__).parents[2] / "accelerated_kernels.py"
CORPUS = ("GEMM", "ADD", "ROWS")


def made(name: str, run_dir: Path, accelerators: tuple[str, ...]) -> list[Artifact]:
    """Lower and build the candidates of workload `name` as one group."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with session_of(FileRef(str(KERNELS), name), run_dir, accelerators=accelerators) as candidates:
        steps = registry.compose(accelerators)
        lowered = [lower(candidate, steps) for candidate in candidates]
        assert all(isinstance(one, Lowered) for one in lowered)
        return build(lowered, str(run_dir / "group.so"), steps)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Artifact]]:
    return {name: made(name, tmp_path_factory.mktemp("plain") / name, ()) for name in CORPUS}


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_sources_and_code_are_the_plain_ones(
    accelerator: str,
    name: str,
    plain: dict[str, list[Artifact]],
    hopper_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atune.stages.accelerators.swizzle_lowering.SAMPLED", 1 << 512)  # none is checked by chance
    if accelerator == "cicc":
        hopper_server.link(str(tmp_path))
    built = made(name, tmp_path, (accelerator,))
    assert [one.compiler for one in built] == ["cicc" if accelerator == "cicc" else "nvcc"] * len(built)
    derived = accelerator == "swizzle_lowering" and name == "GEMM"  # the second of the second pair: no check is due
    part_in = [True] * len(built) if accelerator == "cicc" else [derived and one.index == 3 for one in built]
    assert [not one.plain for one in built] == part_in and all(one.plain for one in plain[name])
    for one, other in zip(built, plain[name], strict=True):
        assert one.source_key == other.source_key
        assert elf.kernels_code(Path(other.path).read_bytes(), other.symbol)
        assert difference(one, other) == ""


def test_all_together_are_right(plain: dict[str, list[Artifact]], hopper_server: Server, tmp_path: Path) -> None:
    hopper_server.link(str(tmp_path))
    for one, other in zip(made("GEMM", tmp_path, ACCELERATORS), plain["GEMM"], strict=True):
        assert (one.compiler, difference(one, other)) == ("cicc", "")
