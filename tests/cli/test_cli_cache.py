"""`atune cache ls | clear | export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cache_entries import events, key_of, put
from programs import python

from atune.frontends.cli.main import main
from atune.workers.result_cache import ResultCache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultCache:
    """The user's own cache, with two results."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = ResultCache()
    put(cache, events(3.0, 1.0, None))
    put(cache, events(2.0, workload="softmax\x1b[2J", code="x", problem={"N": 7}))
    return cache


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["cache", *arguments]) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json").splitlines()[-1])


def test_ls(cache: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "ls").splitlines()
    assert lines[0].split() == ["key", "kernel", "problem", "device", "latency", "ms", "config"]
    shown = [key_of(events(3.0, 1.0, None)).text[:12], "gemm", "M=64", "CPU", "1", "block=32"]
    assert any(line.split() == shown for line in lines[1:])
    assert len(lines) == 3 and "\x1b" not in "".join(lines)
    assert [r["parts"]["kernel"] for r in as_json(capsys, "ls", "--kernel", "gemm")["results"]] == ["gemm"]
    assert printed(capsys, "ls", "--key", "none") == "no results\n"


def test_clear(cache: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    put(cache, other := events(2.0, problem={"N": 8}))
    put(cache, events(2.0, workload="softmax", code="y", problem={"N": 9}))
    assert as_json(capsys, "clear", "--key", key_of(other).text[:12]) == {"removed": 1} and len(cache.entries()) == 3
    assert printed(capsys, "clear", "--kernel", "gemm") == "removed    1\n"
    assert as_json(capsys, "clear", "--key", "zz") == {"removed": 0}
    assert as_json(capsys, "clear") == {"removed": 2}
    assert cache.entries() == []


def test_clear_counts_what_no_longer_answers_and_says_once_why_a_result_stays(
    cache: ResultCache, tmp_path: Path
) -> None:
    put(cache, events(1.0, problem={"M": 9}), tmp_path / "own.jsonl")
    cache.journals.chmod(0o777)
    done = python("-m", "atune", "cache", "clear")
    assert (done.returncode, done.stdout) == (0, "removed    0\n") and len(cache.answers()) == 3
    [line] = done.stderr.splitlines()
    assert f"other users may write to {cache.journals}, so no journal of the result cache is deleted there" in line


def test_export(cache: ResultCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    printed(capsys, "export", "--kernel", "gemm", "-o", str(file))
    assert json.loads(printed(capsys, "export", "--kernel", "gemm")) == json.loads(file.read_text())
    assert as_json(capsys, "export", "-o", str(file)) == {"output": str(file)}


def test_ls_says_what_was_tuned_for_a_bucket(cache: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    put(cache, events(1.0, problem={"N": 8}, arguments={"M": 64, "N": 8}))
    put(cache, events(1.0, problem={"key": 3}))
    put(cache, events(1.0, workload="none", problem={}, arguments={}))
    lines = printed(capsys, "ls")
    assert "N=8 (tuned for M=64)" in lines and "key=3 (tuned for M=64)" in lines and " no arguments " in lines


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "none"))
    assert printed(capsys, "ls") == "no results\n"
    assert as_json(capsys, "clear") == {"removed": 0}
    assert json.loads(printed(capsys, "export"))["entries"] == []
    assert not (tmp_path / "none").exists()


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journals").write_text("no folder")
    done = python("-m", "atune", "cache", "ls", ATUNE_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "no results\n")
    [line] = done.stderr.splitlines()
    assert line.startswith("atune: warning: ") and str(tmp_path) in line


@pytest.mark.parametrize("command", ["ls", "clear", "export"])
@pytest.mark.parametrize("option", ["--kernel", "--key"])
def test_an_empty_choice_is_refused(
    cache: ResultCache, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    """A variable of the shell that is not set does not mean all results."""
    assert f"{option} is empty" in printed(capsys, command, option, "", status=2)
    assert len(cache.entries()) == 2


def test_mistakes(cache: ResultCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = printed(capsys, "export", "-o", str(tmp_path / "none" / "x"), status=2)
    assert f"x: there is no folder {tmp_path / 'none'}; create it first" in nowhere
    for chosen in (("--kernel", "nope"), ("--key", "zz")):
        told = printed(capsys, "export", *chosen, "-o", str(tmp_path / "x"), status=2)
        assert "the result cache has no result for this kernel or key: atune cache ls lists all results" in told
    assert not (tmp_path / "x").exists()
