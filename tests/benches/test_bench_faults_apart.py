"""`bench/faults_apart.py`: over fakes, which figures count as taken beside a fault; a killed run on the CPU."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import faults_apart
import pytest
from faults import FAULTS
from faults_apart import Span

from atune.journal.reader import JournalReader
from atune.model.settings import BenchmarkSettings
from atune.testing import FakeMachine, Script

ROOT = Path(__file__).resolve().parents[2]
KINDS = {2: "fault", 5: "fault", 8: "fault", 14: "out_of_memory", 17: "mismatch", 20: "non_finite", 23: "unwritten"}


def make(devices: Sequence[str], name: str, benchmark: BenchmarkSettings) -> FakeMachine:
    """Return two fake devices, of which the second is slower by a hundredth, or only the one that is asked for."""
    others = {f"fake-{n}": math.inf for n in range(2) if f"fake-{n}" not in devices}
    script = Script(latency_ms=lambda c: 1.0 + c["x"] / 100, slowdown={"fake-1": 1.01}, start_failures=others)
    if name == "CLEAN":
        good = [{"x": x} for x in range(29) if x not in FAULTS]
        return FakeMachine(good, script, devices=2, benchmark=benchmark)
    faulty = Script(**{**vars(script), "fails": KINDS, "hangs": {11: "measure"}})
    return FakeMachine(29, faulty, devices=2, benchmark=benchmark)


def test_figures_beside_a_fault_are_compared_with_the_same_devices_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = argparse.Namespace(devices="fake-0,fake-1", out=tmp_path, deadline=4.0, repeats=2)
    found = faults_apart.apart(arguments, make)
    assert found["faults"] == {
        "fault": 6, "out_of_memory": 2, "mismatch": 2, "non_finite": 2, "unwritten": 2, "timeout": 2,
    }  # fmt: skip
    assert found["figures"] > 10 and found["farthest"] == found["clean_farthest"] == 0.0 and found["twice"] == []
    hang = next(row for row in found["rows"] if row[0] == "endless")
    assert hang[1] == 2 and hang[3] > 5  # the other device goes on
    assert json.loads((tmp_path / "apart.json").read_text())["figures"] == found["figures"]
    assert "measured twice: none" in capsys.readouterr().out


def test_only_another_devices_figures_of_that_time_count() -> None:
    bad = Span("0", 11, 10.0, 15.0, None)
    beside, after = Span("1", 0, 9.0, 10.5, 1.02), Span("1", 1, 15.5, 16.0, 2.0)
    own, unknown = Span("0", 3, 9.0, 10.0, 2.0), Span("1", 4, 11.0, 12.0, 2.0)
    alone = {("1", 0): 1.0, ("1", 1): 1.0, ("0", 3): 1.0}
    assert faults_apart.moved([bad, beside, after, own, unknown], alone) == [(bad, [1.02])]
    assert faults_apart.farthest([1.02, 0.97]) == pytest.approx(0.03)


def test_a_killed_run_is_resumed_and_measures_nothing_twice(tmp_path: Path) -> None:
    workload = f"{ROOT / 'tests' / 'workloads.py'}:MANY"
    arguments = argparse.Namespace(devices="cpu", out=tmp_path, workload=workload, target="c")
    found = faults_apart.resumed(arguments)
    assert found["status"] == 0 and found["twice"] == []
    killed, rest = (part["cpu"] for part in found["measured"])
    assert killed > 14 and killed + rest == 36
    assert len(list(JournalReader(str(tmp_path / "resumed.jsonl")))) > 100
