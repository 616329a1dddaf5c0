"""`bench/second_tune.py`: what of a second tuning's first artifact is the candidate's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import second_tune

from atune.journal.events import ArtifactBuilt, CandidateLowered, Event, RunStarted
from atune.model.artifact import StaticFacts
from atune.model.device import Target

ROOT = Path(__file__).resolve().parents[2]


def started() -> RunStarted:
    return RunStarted(
        seq=0, time=0, mono=0, schema=1, workload="w", origin="", fingerprint="", space="", total=4, arguments={},
        target=Target("cuda", "sm_90a"), devices=(), strategy="exhaustive", settings={}, versions={},
    )  # fmt: skip


def lowered(index: int, worker: str, seconds: float) -> CandidateLowered:
    return CandidateLowered(
        seq=0, time=0, mono=0, worker=worker, index=index, code_key=str(index), facts=StaticFacts(), seconds=seconds
    )


def built(*indices: int) -> ArtifactBuilt:
    return ArtifactBuilt(seq=0, time=0, mono=0, worker="b", indices=indices, file="f", seconds=2.0, compiler="nvcc")


def figures(*timeline: tuple[float, Event]) -> dict[str, Any]:
    return second_tune.figures([(0.05, started()), *timeline])


def test_of_one_candidate_lowering_and_building_are_its_own() -> None:
    found = figures((0.38, lowered(1, "b", 0.5)), (0.4, lowered(0, "a", 0.3)), (2.42, built(0)), (2.5, built(1)))
    assert (found["own_s"], found["over_s"], found["over_one_s"]) == (2.3, 0.12, 0.12)
    assert (found["started_s"], found["loaded_s"], found["members"], found["in_a_row"]) == (0.05, 0.05, 1, 1)


def test_members_lowered_at_the_same_time_count_once_and_those_in_a_row_both() -> None:
    beside = figures((0.38, lowered(0, "a", 0.25)), (0.41, lowered(1, "b", 0.3)), (2.43, built(0, 1)))
    assert (beside["own_s"], beside["over_s"], beside["in_a_row"]) == (2.3, 0.13, 1)
    row = figures((0.38, lowered(0, "a", 0.25)), (0.7, lowered(1, "a", 0.3)), (2.72, built(0, 1)))
    assert (row["own_s"], row["over_s"], row["over_one_s"], row["in_a_row"]) == (2.55, 0.17, 0.42, 2)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_it_runs_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "second_tune.py"), "--groups", "1", "--repeats", "1"]
    done = subprocess.run(
        [*command, "--candidates", "2", "--out", str(tmp_path)], capture_output=True, text=True, timeout=170,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "second_tune.json").read_text())
    [run] = found["1"]["runs"]
    assert run["members"] == 1 and run["compiler"] == "nvcc" and run["reason"] == "group size as asked"
    assert 0 < run["started_s"] < run["first_artifact_s"] and run["own_s"] > 0
    assert abs(run["over_s"] - found["1"]["median"]["over_s"]) < 1e-3
    assert [name for _, name, _ in run["timeline"]].count("artifact_built") == 1
    assert "over_s, all" in done.stdout
