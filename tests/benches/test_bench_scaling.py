"""`bench/scaling.py` over fakes: the counts it compares, what it finds of the devices, and its journals."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import scaling

from atune.journal.replay import replay
from atune.testing import FakeMachine, Script


def make(script: Script, total: int = 12) -> scaling.Make:
    """Return what makes a machine on as many of four devices as are named."""

    def on(devices: Sequence[str]) -> FakeMachine:
        return FakeMachine(total, script, devices=4 if tuple(devices) == ("all",) else len(devices))

    return on


def test_all_counts_measure_all_and_the_journals_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = argparse.Namespace(out=tmp_path, candidates=10, repeats=2, passes=2)
    script = Script(latency_ms=lambda c: 1.0 + c["x"], fails={3: "mismatch", 5: "fault", 6: "lower"})
    results = scaling.run(arguments, make(script))
    part = results["stage"]
    assert list(part["seconds"]) == [1, 2, 4] and part["artifacts"] == 9 and part["measurements"] == 18
    for count, passes in part["passes"].items():
        assert [sum(one["measured"].values()) for one in passes] == [14, 14]
        assert [one["failed"] for one in passes] == [{"mismatch": 2, "fault": 2}] * 2
        assert all(len(one["measured"]) == count for one in passes)
    assert part["times_faster"][1] == 1.0 and len(part["reference_ms"]) == 4 and not part["reference_off"]
    for count, record in results["engine"].items():
        assert sum(record["measured"].values()) == 9 and len(record["reference_ms"]) == count
        assert record["final_on"] in record["measured"] and record["stage_s"] > 0
        assert replay(tmp_path / f"scaling-{count}.jsonl").best_config == record["winner"] == {"x": 0}
    assert json.loads((tmp_path / "scaling.json").read_text())["stage"]["seconds"].keys() == {"1", "2", "4"}
    printed = capsys.readouterr().out
    assert "2 GPUs: " in printed and "4 GPUs: " in printed and "none is left out" in printed


def test_a_slow_device_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = argparse.Namespace(out=None, candidates=12, repeats=1, passes=1)
    results = scaling.run(arguments, make(Script(slowdown={"fake-2": 1.1})))
    assert results["stage"]["reference_off"] == {"fake-2": 1.1}
    assert list(results["engine"][4]["excluded"]) == ["fake-2"] and not results["engine"][2]["excluded"]
    assert "left out by the engine's rule: {'fake-2': 1.1}" in capsys.readouterr().out
