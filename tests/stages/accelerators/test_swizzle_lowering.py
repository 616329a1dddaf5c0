"""Candidates that differ in the order of their blocks: lowered once, where that was seen to give the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import wrong_accelerators
from stage_runs import session_of
from versions import accelerated

from atune.stages.accelerators import registry, swizzle_lowering
from atune.stages.compile.lowering import Blob, lower
from atune.workload.workload import FileRef

FORMS = FileRef(str(Path(__file__).parents[2] / "accelerated_kernels.py"), "FORMS")
SPY, READER = "wrong_accelerators:Spy", "wrong_accelerators:OrderReader"


@pytest.fixture(autouse=True)
def calls() -> list[str]:
    wrong_accelerators.CALLS.clear()
    return wrong_accelerators.CALLS


def sources(accelerators: tuple[str, ...], run_dir: Path) -> tuple[list[str], list[int]]:
    """Return what each candidate is printed as and its host's part, and how often all up to it were lowered in full."""
    run_dir.mkdir()
    steps, found, lowered = registry.compose(accelerators), [], []
    with session_of(FORMS, run_dir, accelerators=accelerators) as candidates:
        for candidate in candidates:
            blob = msgspec.msgpack.decode(lower(candidate, steps).blob, type=Blob)
            found.append(f"{blob.source}\n{blob.source_key}")
            lowered.append(len(wrong_accelerators.CALLS))
    wrong_accelerators.CALLS.clear()
    return found, lowered


def notes(run_dir: Path) -> list[str]:
    return sorted(path.suffix for path in (run_dir / "relatives").iterdir() if path.suffix)


def test_some_are_checked_however_many_were_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swizzle_lowering, "SAMPLED", 1)
    _, lowered = sources(("swizzle_lowering", SPY), tmp_path / "shared")
    assert lowered == [1, 2, 3, 4, 5, 6]


def test_two_forms_in_one_run_are_each_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three panels the second is lowered in full, too, and compared; what a check says holds for its own form."""
    monkeypatch.setattr(swizzle_lowering, "SAMPLED", 1 << 200)
    plain, each = sources((SPY,), tmp_path / "plain")
    assert each == [1, 2, 3, 4, 5, 6] and len(set(plain)) == 6
    shared, lowered = sources(("swizzle_lowering", SPY), tmp_path / "shared")
    assert shared == plain and lowered == [1, 2, 2, 3, 4, 4]
    assert notes(tmp_path / "shared") == [".checked", ".checked"]


@accelerated
def test_a_form_whose_derived_code_differs_is_lowered_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After another form's check went well; that one's sharing goes on."""
    monkeypatch.setattr(swizzle_lowering, "SAMPLED", 1 << 200)
    plain, _ = sources((READER,), tmp_path / "plain")
    shared, lowered = sources(("swizzle_lowering", READER), tmp_path / "shared")
    assert shared == plain and lowered == [1, 2, 2, 3, 4, 5]
    assert notes(tmp_path / "shared") == [".checked", ".doubted"]
