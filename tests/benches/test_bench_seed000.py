"""`bench/seed000.py`: its ways, their figures over scripted runs, and one tuning with everything off."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import seed000
from counted import Finished

from atune.journal.events import RunStarted
from atune.journal.reader import JournalReader

TWO = {
    "nothing": "--devices 0",
    "2 devices": "--devices 0,1",
    "pipeline": "--devices 0 --pipeline",
    "groups of 2": "--devices 0 --group-size 2",
    "groups of 4": "--devices 0 --group-size 4",
    "groups automatic": "--devices 0 --group-size 0",
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


def scripted(command: Sequence[str], *, env: dict[str, str], cwd: Path, timeout_s: float) -> Finished:
    """Answer as a run would: nothing takes 80 s, groups of 2 and 4 half and a quarter; with the pipeline it breaks."""
    asked = " ".join(command)
    assert "--child" in command and "--budget" in command and "ATUNE_CACHE_DIR" not in env
    if "--pipeline" in asked:
        return Finished(1, 5.0, 1.0, 0.0, False, "it broke\n")
    size = int(command[command.index("--group-size") + 1]) if "--group-size" in command else 1
    seconds = 80.0 / (size or 8)
    stages = {"compile_s": 2 * seconds, "compile_wall_s": seconds - 8, "benchmark_s": 4.0, "benchmark_wall_s": 4.0}
    told = {"best_config": {"x": 1}, "latency_ms": 0.5, "measured": 19, "failed": 1, "stages": stages}
    return Finished(0, seconds, 1.0, 0.0, False, json.dumps(told) + "\n")


def test_the_table_and_the_figure_have_what_the_runs_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seed000, "run_counted", scripted)
    monkeypatch.setattr(seed000, "read_journal", lambda run, *_: setattr(run, "result_s", run.wall_s))
    command = ["--target", "c", "--space", "roller20", "--budget", "20", "--out", str(tmp_path)]
    assert seed000.main([*command, "--only", "groups"]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "table.md").read_text()
    assert "| groups of 4 | 1 | 20.00 (4.00) | 12.00 (6.00) | 4.00 (1.00) | 40.00 | 4.00 | 19 | 1 | 0.5000 |" in text
    assert "| nothing | 1 | 80.00 | 72.00 | 4.00 | 160.00 | 4.00 | 19 | 1 | 0.5000 |" in text
    drawn = (tmp_path / "figure.svg").read_text()
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="10" fill', drawn)]
    assert widths[3:9] == [460.0, 414.0, 23.0, 230.0, 184.0, 23.0] and "roller20, seconds" in drawn

    assert seed000.main([*command, "--resume"]) == 1  # the ways that are missing, beside those that were run
    text = capsys.readouterr().out
    assert "| groups of 4 | 1 | 20.00 (4.00)" in text
    assert "- roller20, round 1, pipeline: exit status 1: it broke" in text
    with pytest.raises(SystemExit, match="was run with"):
        seed000.main([*command, "--resume", "--rep", "5"])


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
