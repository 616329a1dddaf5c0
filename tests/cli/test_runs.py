"""`atune runs`, of one problem or a set, and the words that stand for a journal: latest, a number, a name's start."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import Stream

from atune.errors import UsageError
from atune.frontends.cli.main import main
from atune.frontends.cli.runs import find_journal
from atune.journal.set_folder import open_set_folder
from atune.journal.writer import Journal, write_journal
from atune.model.candidate import Problem
from atune.workers.result_cache import ResultCache


def recorded(path: Path, age_s: float, *latencies: float, finished: bool = True) -> Path:
    """Write the journal of a run of 4 candidates."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = Stream(total=4)
    for index, latency in enumerate(latencies):
        stream.candidate(index, latency)
    stream = stream.finished() if finished else stream
    written = time.time() - age_s
    run = [msgspec.structs.replace(event, time=written) for event in stream.events]
    write_journal(str(path), run)
    os.utime(path, (written, written))
    ResultCache().add(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs: gemm-2, the newest; softmax-1, interrupted; gemm-1."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cache" / "atune" / "journals"
    recorded(folder / "gemm-2.jsonl", 5, 3.0, 2.0, 4.0, 5.0)
    recorded(folder / "softmax-1.jsonl", 7200, 1.0, finished=False)
    recorded(folder / "gemm-1.jsonl", 9 * 86400, 7.0)
    return folder


def test_the_newest_run_comes_first(folder: Path, capsys: Any) -> None:
    (folder / "torn.jsonl").write_text("{")
    os.utime(folder / "torn.jsonl", (1, 1))
    ResultCache().note(folder / "torn.jsonl")
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["#", "kernel", "problem", "best", "tried", "journal"]
    assert [line[0] for line in lines[1:]] == ["1", "2", "3", "4"]
    assert [line[-1] for line in lines[1:]] == ["gemm-2", "softmax-1", "gemm-1", "torn"]
    assert lines[1][-4:-1] == ["2", "ms", "4"] and lines[4][1] == "unreadable"
    assert lines[2][-4:-1] == ["ms", "1/4", "interrupted"]


def test_json_has_every_run_and_text_the_newest(folder: Path, capsys: Any) -> None:
    for number in range(20):
        recorded(folder / f"old-{number}.jsonl", 10 * 86400, 1.0)
    assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [run["number"] for run in found] == list(range(1, 24))
    first = found[0]
    assert (first["journal"], first["latency_ms"], first["state"]) == (f"{folder}/gemm-2.jsonl", 2.0, "finished")
    assert (first["tried"], first["total"], first["best_config"]) == (4, 4, {"block": 1})
    assert found[1]["state"] == "interrupted"
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "and 3 older: atune runs --all"
    assert main(["runs", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 24


def test_a_run_that_is_written_is_running(folder: Path, capsys: Any) -> None:
    journal, _ = Journal.reopen(folder / "softmax-1.jsonl")
    ResultCache().note(folder / "new.jsonl")
    with journal, Journal.create(folder / "new.jsonl"):
        assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "1/4 running" in out and "starting" in out.splitlines()[1]


def test_without_runs_it_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs yet; start with: atune tune FILE.py\n" and not list(tmp_path.iterdir())
    assert main(["replay", "latest"]) == 2
    assert "atune runs lists 0 runs" in capsys.readouterr().err
    recorded(tmp_path / "toy.jsonl", 5, 1.0)
    assert main(["replay", "two"]) == 2
    assert "atune runs lists 1 run\n" in capsys.readouterr().err


WORDS = {"latest": "gemm-2", "1": "gemm-2", "soft": "soft-1", "gemm-1.jsonl": "gemm-1", "gemm": "gemm-2"}


def test_words_stand_for_a_run(folder: Path) -> None:
    """Of several with that name the newest. A whole name is not the start of another one."""
    recorded(folder / "gemm_fp8-1.jsonl", 6, 3.0)
    recorded(folder / "soft-1.jsonl", 10 * 86400, 3.0)
    assert {word: Path(find_journal(word)).stem for word in WORDS} == WORDS
    for wrong in ("0", "6", "x", ""):
        with pytest.raises(UsageError, match=f"there is no file and no run named '{wrong}': atune runs lists 5"):
            find_journal(wrong)
    Path("latest").touch()
    assert find_journal("latest") == "latest" and find_journal("./3") == "./3"


@pytest.mark.parametrize("command", ["replay", "show", "report", "watch"])
def test_commands_take_them(folder: Path, command: str, capsys: Any) -> None:
    assert main([*command.split(), "latest", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "gemm-2" in printed.get("journal", printed.get("output", "gemm-2"))


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ("n=-5", "no size may be negative"),
        ("n=-5,-6", "no size may be negative"),
        ("M=1,2", "takes no argument 'M'"),
        ("n=x,", "give a name and its values"),
    ],
)
def test_a_call_with_a_mistake_leaves_no_run(sizes: str, told: str, tmp_path: Path, capsys: Any) -> None:
    """Whether of one problem or a set: ``latest`` stays the run before, and there is nothing to resume."""
    kernels = str(Path(__file__).parents[1] / "set_kernels.py")
    tune = ["tune", f"{kernels}:FREE", "--target", "c", "--rep", "3", "--quiet"]
    assert main([*tune, "--arg", "n=512"]) == 0
    before, there = find_journal("latest"), {*ResultCache().journals.iterdir()}
    assert main([*tune, "--arg", sizes]) == 2 and told in capsys.readouterr().err
    assert find_journal("latest") == before and {*ResultCache().journals.iterdir()} == there
    mine = tmp_path / "mine.jsonl"
    assert main([*tune, "--arg", "n=-5", "--journal", str(mine)]) == 2 and mine.exists(), "it was asked for"
    assert find_journal("latest") == before


# A set's folder as one run

NAME = "gemm-20260101-101010.123456"
PROBLEMS = [Problem({"M": size}) for size in (1, 2, 4)]


def ended(journal: Path) -> None:
    events = Stream(total=2).candidate(0, 2.0).candidate(1, 3.0).finished().events
    write_journal(str(journal), [msgspec.structs.replace(event, time=time.time()) for event in events])
    ResultCache().add(journal)


@pytest.fixture
def set_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An older run, and a set of three problems of which two have ended."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    recorded(tmp_path / "journals" / "soft-1.jsonl", 7200, 1.0)
    (tmp_path / "journals" / "no set").mkdir()
    paths, lock = open_set_folder(tmp_path / "journals" / NAME, PROBLEMS)
    lock.close()
    ended(paths[0])
    ended(paths[1])
    return paths[0].parent


def test_a_set_is_one_run(set_folder: Path, capsys: Any) -> None:
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-1] for line in lines[1:]] == [NAME, "soft-1"]
    assert lines[1] == ["1", "toy", "3", "problems", "2/3", "interrupted", NAME]
    with Journal.create(set_folder / "set.lock"):
        assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found | {"written": 0} == {
        "number": 1, "journal": str(set_folder), "written": 0, "kernel": "toy", "problems": 3, "ended": 2,
        "state": "running",
    }  # fmt: skip
    ended(set_folder / "0002.jsonl")
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "toy", "3", "problems", "3", NAME]
    (set_folder / "set.json").write_text("{}")
    assert main(["runs"]) == 0
    assert "unreadable" in capsys.readouterr().out


def test_replay_of_a_set_shows_the_table(set_folder: Path, capsys: Any) -> None:
    assert main(["replay", str(set_folder)]) == 1  # one problem was not begun
    shown = capsys.readouterr().out.splitlines()
    assert "unfinished 1 of 3 problems, 1 of them not begun" in shown
    assert not [line for line in shown if "failed" in line]
    assert "problems   2 of 3 have a winner; 4 candidates measured" in shown
    assert shown[-1] == f"next       atune resume {set_folder}"


def test_a_finished_set_is_shown_and_nothing_runs(set_folder: Path, tmp_path: Path, capsys: Any) -> None:
    (file := tmp_path / "gemm.py").write_text("raise SystemExit('run')")
    os.utime(file, (0, time.time() + 60))
    header, *events = Stream(total=2).candidate(0, 2.0).candidate(1, 3.0).finished().events
    for number in range(3):
        header = msgspec.structs.replace(header, origin=f"{file}:W", time=time.time())
        (set_folder / f"{number:04}.jsonl").unlink(missing_ok=True)
        write_journal(str(set_folder / f"{number:04}.jsonl"), [header, *events])
    assert main(["resume", str(set_folder)]) == 0
    out, err = capsys.readouterr()
    assert "problems   3 of 3 have a winner" in out and len(err.splitlines()) == 1
    assert f"the run of {set_folder} is finished, so there is nothing left to do" in err
    assert f"{file} was edited after the run: atune tune {file} tunes the new version" in err


def test_an_interrupted_set_says_how_it_goes_on(set_folder: Path, capsys: Any) -> None:
    """Its workload came by value, so that no file is known to load it from."""
    header, *events = Stream(total=2).candidate(0, 2.0).events
    for name in ("0000.jsonl", "0001.jsonl"):
        (set_folder / name).unlink()
    write_journal(str(set_folder / "0000.jsonl"), [msgspec.structs.replace(header, origin=""), *events])
    assert main(["replay", str(set_folder)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "unfinished 3 of 3 problems, 2 of them not begun" in shown and shown[1].endswith("block=0 (so far)")
    assert shown[-1] == f"next       tune the set again with journal={set_folder}"


@pytest.mark.parametrize("command", [["show", NAME, "0"], ["explain", NAME], ["watch", NAME], ["merge", NAME]])
def test_where_one_journal_is_wanted_a_set_names_its_own(set_folder: Path, command: list[str], capsys: Any) -> None:
    (set_folder / "0002.jsonl").write_text("damaged\n\n")
    for number in range(3, 13):
        (set_folder / f"{number:04}.jsonl").touch()
    assert main(command) == 2
    why, first, second, damaged, *_, last = capsys.readouterr().err.splitlines()
    assert why == f"atune: error: {set_folder} is a folder and not a journal: give a journal in it, such as"
    assert first == f"  {set_folder / '0000.jsonl'}  N=64" and second == f"  {set_folder / '0001.jsonl'}  N=64"
    assert damaged == f"  {set_folder / '0002.jsonl'}" and last == "  and 3 more"


def test_a_run_of_one_problem_is_not_written_into_a_set(set_folder: Path, capsys: Any) -> None:
    for journal in (str(set_folder), "latest"):
        assert main(["tune", f"{__file__}:W", "--journal", journal]) == 2
        said = f"--journal {set_folder} is the folder of a set: also give its problems with --arg or --problems"
        assert said in capsys.readouterr().err


def test_a_folder_without_journals_says_so(tmp_path: Path, capsys: Any) -> None:
    assert main(["show", str(tmp_path), "0"]) == 2
    assert f"{tmp_path} is a folder and not a journal: it has no *.jsonl file\n" in capsys.readouterr().err


def test_a_set_is_shown_as_its_table_and_exported_with_its_problems(set_folder: Path, capsys: Any) -> None:
    main(["replay", NAME])
    table = capsys.readouterr().out
    assert main(["show", NAME]) == 1 and capsys.readouterr().out == table
    assert main(["export", NAME, "--to", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["problem.N"] for row in rows} == {64} and {row["config.block"] for row in rows} >= {0}
    assert main(["export", str(set_folder / "0000.jsonl"), "--to", "json"]) == 0
    assert "problem.N" not in json.loads(capsys.readouterr().out)[0]
