"""The proof that a library holds tilelang's own code: it holds where it should, and finds each kind of wrong step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage_runs import session_of

from atune.model.artifact import Artifact
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.stages.accelerators import registry
from atune.stages.compile import elf
from atune.stages.compile.codegen import build
from atune.stages.compile.lowering import lower
from atune.stages.compile.proof import prove
from atune.workload.workload import FileRef

KERNELS = Path(__file__).parents[2] / "accelerated_kernels.py"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def built(candidates: list[Candidate], names: tuple[str, ...], path: Path) -> list[Artifact]:
    steps = registry.compose(names)
    return build([lower(candidate, steps) for candidate in candidates], str(path), steps)


@needs_nvcc
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("WrongLowering", "the generated source"),
        ("WrongCompile", "the code of .text."),
        ("WrongLink", "the code of .text."),
        ("Spy", ""),
    ],
)
def test_a_wrong_accelerator_is_found_on_each_step(wrong: str, found: str, tmp_path: Path) -> None:
    with session_of(FileRef(str(KERNELS), "ADD"), tmp_path) as candidates:
        artifacts = built(candidates, (f"wrong_accelerators:{wrong}",), tmp_path / "group.so")
        proof = prove(candidates[0], artifacts[0], str(tmp_path / "plain.so"))
    assert proof.plain is not None and proof.plain.plain and not artifacts[0].plain
    assert proof.difference.startswith(found) and bool(proof.difference) == bool(found)


@pytest.mark.parametrize(("wrong", "found"), [("WrongLowering", "the generated source"), ("Spy", "")])
def test_on_the_cpu_the_sources_decide(wrong: str, found: str, tmp_path: Path) -> None:
    with session_of(FileRef(str(KERNELS), "ADD"), tmp_path, Target("c")) as candidates:
        artifacts = built(candidates, (f"wrong_accelerators:{wrong}",), tmp_path / "group.so")
        assert prove(candidates[1], artifacts[1], str(tmp_path / "plain.so")).difference == found


def test_what_is_no_library_has_no_code(tmp_path: Path) -> None:
    assert elf.kernel_sections(b"", "kernel") == {}
    assert elf.kernel_sections(b"x" + elf.MAGIC + bytes(13) + b"\xbe\0" + bytes(60), "kernel") == {}
    with pytest.raises(ValueError, match="ELF"):
        elf.sections(memoryview(b"\x7fELF\x01" + bytes(80)))
