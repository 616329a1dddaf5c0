"""Whether a library holds the code that nvcc makes: each kind of difference is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from stage_runs import session_of

from atune.model.artifact import Artifact, Compared, Failure
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.stages import elf
from atune.stages.cicc import compared
from atune.stages.codegen import Compile, build, by_nvcc
from atune.stages.lowering import lower
from atune.workload.pickling import FileRef

KERNELS = Path(__file__).parents[2] / "accelerated_kernels.py"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def built(candidates: list[Candidate], path: Path, compile: Compile = by_nvcc) -> list[Artifact]:
    return build([lower(candidate) for candidate in candidates], str(path), compile)


def wrong(this: str, that: str) -> Compile:
    """Return what compiles another source than the one that is shown."""
    return lambda source, pass_configs: by_nvcc(source.replace(this, that), pass_configs)


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "compile", "found"),
    [
        ("PLUS", wrong("0x1p+0f", "0x1p+1f"), "the code of .text."),
        ("TWO", wrong("0x1p+1f", "0x1p+2f"), "the code of .text.K_kernel_1"),  # the first has no such number
        ("TWO", wrong("{4.0f, 5.0f}", "{4.0f, 6.0f}"), "the code of .nv.constant3"),
        ("TWO", by_nvcc, ""),
    ],
)
def test_other_code_is_found_in_every_kernel_and_its_constants(
    name: str, compile: Compile, found: str, tmp_path: Path
) -> None:
    with session_of(FileRef(str(KERNELS), name), tmp_path) as candidates:
        artifacts = built(candidates, tmp_path / "group.so", compile)
        proof = compared(candidates[0], artifacts[0], str(tmp_path / "plain.so"))
    assert isinstance(proof, Compared)
    assert proof.difference.startswith(found) and bool(proof.difference) == bool(found)


@pytest.mark.parametrize("source", ["another", ""])
def test_on_the_cpu_the_sources_decide(source: str, tmp_path: Path) -> None:
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path, Target("c")) as candidates:
        artifacts = built(candidates, tmp_path / "group.so")
        measured = msgspec.structs.replace(artifacts[1], source_key=source or artifacts[1].source_key)
        proof = compared(candidates[1], measured, str(tmp_path / "plain.so"))
    assert isinstance(proof, Compared) and proof.difference == ("the generated source" if source else "")


@needs_nvcc
def test_a_library_that_was_stored_under_another_name_is_compared_all_the_same(tmp_path: Path) -> None:
    """An axis that changes no code: the store's library has the symbol of the configuration that built it."""
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path) as candidates:
        artifacts = built(candidates, tmp_path / "group.so")
        other = Candidate(candidates[0].index, "0123456789abcdef", candidates[0].config)
        proof = compared(other, artifacts[0], str(tmp_path / "plain.so"))
    assert isinstance(proof, Compared)
    assert proof.difference == ""


@needs_nvcc
def test_what_nvcc_refuses_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path) as candidates:
        (artifact, *_) = built(candidates, tmp_path / "group.so")
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "--no-such-option")
        monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
        answer = compared(candidates[0], artifact, str(tmp_path / "plain.so"))
    assert isinstance(answer, Failure) and answer.kind == "compile"


def test_what_is_no_library_has_no_code(tmp_path: Path) -> None:
    assert elf.kernels_code(b"", "symbol") == []
    assert elf.kernels_code(b"x" + elf.MAGIC + bytes(13) + b"\xbe\0" + bytes(60), "symbol") == []
    with pytest.raises(ValueError, match="ELF"):
        elf.sections(memoryview(b"\x7fELF\x01" + bytes(80)))
