"""The proof that a library holds tilelang's own code: it holds where it should, and finds each kind of wrong step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage_runs import session_of

from atune.model.artifact import Artifact, Failure, Proof
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.stages.accelerators import registry
from atune.stages.compile import elf
from atune.stages.compile.codegen import build
from atune.stages.compile.lowering import lower
from atune.stages.compile_jobs import prove_plain
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
        ("Spy", ""),
    ],
)
def test_a_wrong_accelerator_is_found_on_each_step(wrong: str, found: str, tmp_path: Path) -> None:
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path) as candidates:
        artifacts = built(candidates, (f"wrong_accelerators:{wrong}",), tmp_path / "group.so")
        proof = prove_plain(candidates[0], artifacts[0], str(tmp_path / "plain.so"))
    assert isinstance(proof, Proof) and proof.plain is not None and proof.plain.plain and not artifacts[0].plain
    assert proof.difference.startswith(found) and bool(proof.difference) == bool(found)


@pytest.mark.parametrize(("wrong", "found"), [("WrongLowering", "the generated source"), ("Spy", "")])
def test_on_the_cpu_the_sources_decide(wrong: str, found: str, tmp_path: Path) -> None:
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path, Target("c")) as candidates:
        artifacts = built(candidates, (f"wrong_accelerators:{wrong}",), tmp_path / "group.so")
        proof = prove_plain(candidates[1], artifacts[1], str(tmp_path / "plain.so"))
    assert isinstance(proof, Proof) and proof.difference == found


@needs_nvcc
@pytest.mark.parametrize(
    ("wrong", "found"),
    [("WrongSecondKernel", "the code of .text.K_kernel_1"), ("WrongTable", "the code of .nv.constant3")],
)
def test_every_kernel_of_a_candidate_and_its_constants_are_compared(wrong: str, found: str, tmp_path: Path) -> None:
    with session_of(FileRef(str(KERNELS), "TWO"), tmp_path) as candidates:
        artifacts = built(candidates, (f"wrong_accelerators:{wrong}",), tmp_path / "group.so")
        proof = prove_plain(candidates[0], artifacts[0], str(tmp_path / "plain.so"))
        right = prove_plain(candidates[0], built(candidates, (), tmp_path / "right.so")[0], str(tmp_path / "again.so"))
    assert isinstance(proof, Proof) and proof.difference == found
    assert isinstance(right, Proof) and right.difference == ""


@needs_nvcc
def test_a_library_that_was_stored_under_another_name_is_compared_all_the_same(tmp_path: Path) -> None:
    """An axis that changes no code: the store's library has the symbol of the configuration that built it."""
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path) as candidates:
        artifacts = built(candidates, ("wrong_accelerators:Spy",), tmp_path / "group.so")
        other = Candidate(candidates[0].index, "0123456789abcdef", candidates[0].config)
        proof = prove_plain(other, artifacts[0], str(tmp_path / "plain.so"))
    assert isinstance(proof, Proof) and proof.plain is not None and proof.plain.symbol != artifacts[0].symbol
    assert proof.difference == ""


@needs_nvcc
def test_what_nvcc_refuses_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path) as candidates:
        (artifact, *_) = built(candidates, ("wrong_accelerators:Spy",), tmp_path / "group.so")
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "--no-such-option")
        monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
        answer = prove_plain(candidates[0], artifact, str(tmp_path / "plain.so"))
    assert isinstance(answer, Failure) and answer.kind == "compile"


def test_what_is_no_library_has_no_code(tmp_path: Path) -> None:
    assert elf.kernels_code(b"", "symbol") == []
    assert elf.kernels_code(b"x" + elf.MAGIC + bytes(13) + b"\xbe\0" + bytes(60), "symbol") == []
    with pytest.raises(ValueError, match="ELF"):
        elf.sections(memoryview(b"\x7fELF\x01" + bytes(80)))
