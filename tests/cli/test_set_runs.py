"""A set's folder as one run: `atune runs`, the words that stand for it, and `atune replay`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli.test_runs import recorded
from event_streams import Stream

from atune.frontends.cli.main import main
from atune.journal.set_folder import open_set_folder
from atune.journal.writer import Journal, write_journal
from atune.model.candidate import Problem
from atune.workers.result_cache import ResultCache

NAME = "gemm-20260101-101010.123456"
PROBLEMS = [Problem({"M": size}) for size in (1, 2, 4)]


def ended(journal: Path) -> None:
    events = Stream(total=2).candidate(0, 2.0).candidate(1, 3.0).finished().events
    write_journal(str(journal), [msgspec.structs.replace(event, time=time.time()) for event in events])
    ResultCache().add(journal)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An older run, and a set of three problems of which two have ended."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    recorded(tmp_path / "journals" / "soft-1.jsonl", 7200, 1.0)
    (tmp_path / "journals" / "no set").mkdir()
    paths, lock = open_set_folder(tmp_path / "journals" / NAME, PROBLEMS)
    lock.close()
    ended(paths[0])
    ended(paths[1])
    return paths[0].parent


def test_a_set_is_one_run(folder: Path, capsys: Any) -> None:
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-1] for line in lines[1:]] == [NAME, "soft-1"]
    assert lines[1] == ["1", "toy", "3", "problems", "2/3", "interrupted", NAME]
    with Journal.create(folder / "set.lock"):
        assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found | {"written": 0} == {
        "number": 1, "journal": str(folder), "written": 0, "kernel": "toy", "problems": 3, "ended": 2,
        "state": "running",
    }  # fmt: skip
    ended(folder / "0002.jsonl")
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "toy", "3", "problems", "3", NAME]
    (folder / "set.json").write_text("{}")
    assert main(["runs"]) == 0
    assert "unreadable" in capsys.readouterr().out


def test_replay_of_a_set_shows_the_table(folder: Path, capsys: Any) -> None:
    assert main(["replay", str(folder)]) == 1  # one problem was not begun
    shown = capsys.readouterr().out.splitlines()
    assert "unfinished 1 of 3 problems; 1 not begun" in shown and not [line for line in shown if "failed" in line]
    assert "problems   2 of 3 with a winner; 4 measured" in shown
    assert shown[-1] == f"next       atune resume {folder}"


@pytest.mark.parametrize("changed", [False, True])
def test_a_finished_set_is_shown_and_nothing_runs(changed: bool, folder: Path, tmp_path: Path, capsys: Any) -> None:
    (file := tmp_path / "gemm.py").write_text("raise SystemExit('run')")
    os.utime(file, (0, time.time() + 60 if changed else 0))
    header, *events = Stream(total=2).candidate(0, 2.0).candidate(1, 3.0).finished().events
    for number in range(3):
        header = msgspec.structs.replace(header, origin=f"{file}:W", time=time.time())
        (folder / f"{number:04}.jsonl").unlink(missing_ok=True)
        write_journal(str(folder / f"{number:04}.jsonl"), [header, *events])
    assert main(["resume", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "problems   3 of 3 with a winner" in out and len(err.splitlines()) == 1
    assert f"the run of {folder} is finished: nothing is left to do" in err
    assert (f"{file} was written since: atune tune {file} tunes it" in err) == changed


def test_an_interrupted_set_says_how_it_goes_on(folder: Path, capsys: Any) -> None:
    """Its workload came by value, so that no file is known to load it from."""
    header, *events = Stream(total=2).candidate(0, 2.0).events
    for name in ("0000.jsonl", "0001.jsonl"):
        (folder / name).unlink()
    write_journal(str(folder / "0000.jsonl"), [msgspec.structs.replace(header, origin=""), *events])
    assert main(["replay", str(folder)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "unfinished 3 of 3 problems; 2 not begun" in shown and shown[1].endswith("block=0 (so far)")
    assert shown[-1] == f"next       tune the set again, with {folder} as its journal"


@pytest.mark.parametrize("command", ["show", "explain", "watch"])
def test_where_one_journal_is_wanted_a_set_names_one(folder: Path, command: str, capsys: Any) -> None:
    assert main([command, NAME]) == 2
    assert f"it is a folder: give a journal in it, such as {folder / '0000.jsonl'}" in capsys.readouterr().err
