"""What may share a library: in it a kernel does what it does when it is compiled alone."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
import torch
from neighbouring_kernels import KINDS, N
from stage_runs import CUDA, session_of

from atune import version
from atune.model.artifact import Lowered
from atune.model.device import Target
from atune.stages import lowering
from atune.stages.codegen import build
from atune.stages.loader import load
from atune.stages.lowering import lower
from atune.workload.pickling import FileRef

KERNELS = str(Path(__file__).parents[2] / "neighbouring_kernels.py")
CPU = Target("c")


def lowered(name: str, folder: Path, target: Target, kind: str = "") -> list[Lowered]:
    with session_of(FileRef(KERNELS, name), folder, target) as candidates:
        return [lower(candidate) for candidate in candidates if candidate.config.get("kind", "") == kind]


@pytest.mark.parametrize("target", [CPU, CUDA], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_those_of_different_texts_share_no_library(kind: str, target: Target, tmp_path: Path) -> None:
    first, second = lowered("TIMES", tmp_path, target, kind)
    assert first.merge_key != second.merge_key


@pytest.mark.parametrize("kind", ["source", "among"])
def test_a_text_behind_the_kernels_first_line_is_compiled_alone(kind: str, tmp_path: Path) -> None:
    first, second = lowered("BEHIND", tmp_path, CUDA, kind)
    assert first.merge_key != second.merge_key


@pytest.mark.parametrize("target", [CPU, CUDA], ids=str)
def test_those_of_one_text_share_a_library(target: Target, tmp_path: Path) -> None:
    first, second = lowered("SHARED", tmp_path, target)
    assert first.merge_key == second.merge_key and first.code_key != second.code_key


@pytest.mark.parametrize(("name", "kind"), [*(("TIMES", kind) for kind in ("helper", "macro")), ("SHARED", "")])
def test_each_multiplies_by_its_own_number(name: str, kind: str, tmp_path: Path) -> None:
    found = []
    with session_of(FileRef(KERNELS, name), tmp_path, CPU) as candidates:
        members = [lower(candidate) for candidate in candidates if candidate.config.get("kind", "") == kind]
        for n, (_, group) in enumerate(groupby(members, lambda one: one.merge_key)):
            for artifact in build(list(group), str(tmp_path / f"{n}.so")):
                out = torch.zeros(N)
                load(artifact)(torch.ones(N), out)
                found.append(set(out.tolist()))
    assert found == [{2.0}, {3.0}]


def test_what_an_earlier_way_made_has_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a stored library nor the result that was measured with it is found again."""
    [now, _] = lowered("SHARED", tmp_path, CPU)
    assert version.installed_versions()["atune libraries"] == str(version.LIBRARIES)
    monkeypatch.setattr(lowering, "LIBRARIES", version.LIBRARIES - 1)
    lowering._generators.cache_clear()
    [before, _] = lowered("SHARED", tmp_path, CPU)
    lowering._generators.cache_clear()
    assert now.code_key == before.code_key
    assert now.ir_key != before.ir_key and now.store_key != before.store_key
