"""`atune compare`: journals by path, folder and word, its exit status, and what it prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write

from atune.frontends.cli.main import main


def recorded(path: Path, latency_ms: float, age_s: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = [latency_ms * (1 + n / 1000) for n in range(20)]
    write(path, Stream(total=1).ready().candidate(0, *samples, block=0).finished().events)
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of 1 ms, and in the cache folder a later one of 1.1 ms and an earlier one of 1 ms."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATUNE_CACHE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "before" / "a.jsonl", 1.0)
    recorded(tmp_path / "cache" / "atune" / "journals" / "toy-2.jsonl", 1.1)
    recorded(tmp_path / "cache" / "atune" / "journals" / "toy-1.jsonl", 1.0, age_s=60)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("before/a.jsonl latest", 1),
        ("before latest --fail-over 9%", 0),
        ("latest before", 0),
        ("before 2", 0),
        ("toy-1 toy-2", 1),
        ("before toy-2 --fail-over 0%", 1),
    ],
)
def test_the_status_is_1_where_something_is_slower(command: str, status: int, folder: Path, capsys: Any) -> None:
    assert main(["compare", *command.split()]) == status
    text = capsys.readouterr().out
    assert text.startswith(
        "slower     1 of 1 problem by more than " if status else "compared   1 problem, none clearly slower "
    )
    assert "N=64" in text.splitlines()[-1]


def test_where_the_interval_leaves_it_open_nothing_fails(folder: Path, capsys: Any) -> None:
    """The median is 5 % slower, and the limit is 2 %. Help and the first line say what the status says."""
    for name, factor in (("one", 1.0), ("other", 1.05)):
        samples = [factor * (0.9, 1.0, 1.1)[n % 3] for n in range(20)]
        write(folder / f"{name}.jsonl", Stream(total=1).ready().candidate(0, *samples, block=0).finished().events)
    assert main(["compare", "one.jsonl", "other.jsonl"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("compared   1 problem, none clearly slower by more than 2 %\n") and "1.050" in text
    assert main(["compare", "--help"]) == 0
    assert "It is 0 where the\ninterval leaves that open." in capsys.readouterr().out


def test_a_doubt_changes_no_status(folder: Path, capsys: Any) -> None:
    """As on another machine: who relies on the status must not miss what got slower."""
    for name, latency_ms, reference_ms in (("one", 1.0, 5.0), ("same", 1.0, 9.0), ("slow", 1.1, 9.0)):
        samples = [latency_ms * (1 + n / 1000) for n in range(20)]
        events = Stream(total=1).ready(reference_ms).candidate(0, *samples, block=0).finished().events
        write(folder / f"{name}.jsonl", events)
    for after, status in (("same.jsonl", 0), ("slow.jsonl", 1)):
        assert main(["compare", "one.jsonl", after]) == status
        assert "\ndoubtful   the reference's latency moved" in capsys.readouterr().out
    assert main(["compare", "--help"]) == 0
    assert "Lines that begin with doubtful do not change it." in capsys.readouterr().out


def test_json_is_the_comparison(folder: Path, capsys: Any) -> None:
    assert main(["compare", "before", "latest", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    [one] = found["problems"]
    assert (found["slower"], found["fail_over"], one["slower"]) == (1, 0.02, True)
    assert one["ratio"][1] == pytest.approx(1.1) and one["after"]["journal"].endswith("toy-2.jsonl")
    assert one["before"]["config"] == {"block": 0} and one["config"] == [] and one["code"] is False


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("before latest --fail-over 0.02", "must be a percentage, zero or more, such as 2%, got '0.02'"),
        ("before latest --fail-over nan%", "must be a percentage"),
        ("before none/", "cannot read"),
        ("before", "the following arguments are required: J"),
        ("cache before", "cache has no journals: give a journal, a folder of *.jsonl"),
    ],
)
def test_mistakes_have_status_2(command: str, said: str, folder: Path, capsys: Any) -> None:
    assert main(["compare", *command.split()]) == 2
    assert said in capsys.readouterr().err


def test_diff_is_understood(capsys: Any) -> None:
    assert main(["diff", "a", "b"]) == 2
    assert "did you mean atune compare?" in capsys.readouterr().err
