"""`bench/seed000.py`: its ways, their figures over scripted runs, and one tuning with everything off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import seed000

from atune.journal.events import RunStarted
from atune.journal.reader import JournalReader

TWO = {
    "nothing": "--devices 0",
    "2 devices": "--devices 0,1",
    "pipeline": "--devices 0 --pipeline",
    "groups of 2": "--devices 0 --group-size 2",
    "groups of 4": "--devices 0 --group-size 4",
    "groups automatic": "--devices 0 --group-size 0",
    "all, groups of 4": "--devices 0,1 --pipeline --group-size 4",
    "all": "--devices 0,1 --pipeline --group-size 0 --cicc",
}


def test_each_experiment_turns_one_feature_on_and_all_every_one() -> None:
    assert {one.label: " ".join(one.arguments) for one in seed000.chosen("", ["0", "1"])} == TWO
    assert [one.label for one in seed000.chosen("groups", ["0", "1"])] == ["nothing", *list(TWO)[3:6]]
    assert "2 devices" not in [one.label for one in seed000.chosen("", ["0"])]
    with pytest.raises(SystemExit, match="'devices' needs several devices"):
        seed000.chosen("devices", ["0"])
    with pytest.raises(SystemExit, match="'roller' is unknown; there are pipeline, groups, all"):
        seed000.chosen("roller", ["0"])


def test_nothing_is_tuned_without_any_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal.jsonl"
    ref = f"{Path(__file__).parents[2] / 'examples' / 'gemm_cpu.py'}:WORKLOAD"
    seed000.tune([ref, "--target", "c", "--devices", "cpu", "--rep", "3", "--budget", "2", "--journal", str(path)])
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["measured"] == 2 and told["stages"]["compile_s"] > 0 < told["stages"]["benchmark_wall_s"]
    header = next(iter(JournalReader(str(path))))
    assert isinstance(header, RunStarted)
    assert (header.settings["pipeline"], header.settings["compile"]["group_size"]) == (False, 1)
    assert header.settings["compile"]["cicc"] is False
    assert {name: header.settings["benchmark"][name] for name in seed000.COMMON} == seed000.COMMON
