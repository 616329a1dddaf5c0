"""`atune cache ls | show | clear | export | import`."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cache_entries import events, key
from processes import environment

from atune.frontends.cli.main import main
from atune.journal.events import Event
from atune.journal.writer import line_of
from atune.workers.storage.result_cache import ResultCache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultCache:
    """The user's own cache, with two results."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = ResultCache()
    cache.put(key(), events(3.0, 1.0, None))
    cache.put(key(kernel="softmax\x1b[2J", fingerprint="x", problem={"N": 7}), events(2.0))
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
    assert any(line.split() == [key().text[:12], "gemm", "M=64", "CPU", "1", "block=32"] for line in lines[1:])
    assert len(lines) == 3 and "\x1b" not in "".join(lines)
    assert [r["kernel"] for r in as_json(capsys, "ls", "--kernel", "gemm")["results"]] == ["gemm"]
    assert printed(capsys, "ls", "--key", "none") == "no results\n"


def test_show(cache: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", key().text[:10])
    assert "problem       M=64" in text and "fingerprint   f" in text and "measuring     n_repeat=3" in text
    assert "gave wrong outputs: wrong" in text
    found = as_json(capsys, "show", key().text)
    assert (found["config"], found["latency_ms"], found["versions"]) == ({"block": 32}, 1.0, {"atune": "1"})
    assert "2 results have a key" in printed(capsys, "show", "", status=2)
    assert "no results have a key" in printed(capsys, "show", "xyz", status=2)


def test_clear(cache: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "clear", "--kernel", "gemm") == "1 result removed\n"
    assert as_json(capsys, "clear", "--key", "zz") == {"removed": 0}
    assert as_json(capsys, "clear") == {"removed": 1}
    assert cache.entries() == []


def test_export_and_import(cache: ResultCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "results.json", str(tmp_path / "other")
    printed(capsys, "export", "--kernel", "gemm", "-o", str(file))
    assert printed(capsys, "import", str(file), "--folder", other) == "1 result imported\n"
    assert as_json(capsys, "import", str(file), "--folder", other) == {"imported": 0}
    assert "The result was imported" in printed(capsys, "show", key().text, "--folder", other)
    assert json.loads(printed(capsys, "export", "--folder", other)) == json.loads(file.read_text())
    assert as_json(capsys, "export", "-o", str(file)) == {"exported": 2, "file": str(file)}


def journal(path: Path, run: list[Event], problem: dict[str, Any], **changes: Any) -> Path:
    """Write a run's journal with another problem in its header."""
    begun = msgspec.structs.replace(run[0], problem=problem, arguments=problem, **changes)
    path.write_bytes(b"".join(map(line_of, [begun, *run[1:]])))
    return path


def test_journals_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run's result has a key of its own: of a file, of a compressed one, and of a set's folder."""
    there, folder = str(tmp_path / "there"), tmp_path / "set"
    folder.mkdir()
    journal(folder / "0000.jsonl", events(3.0, 1.0), {"M": 1})
    journal(folder / "0001.jsonl", events(None), {"M": 2})
    journal(folder / "0002.jsonl", events(1.0), {"M": 3}, code="")
    journal(folder / "0003.jsonl", events(1.0, finished=False), {"M": 4})
    (folder / "0004.jsonl").write_bytes(b"")
    other = journal(tmp_path / "y.jsonl", events(2.0), {"M": 7})
    (folder / "0005.jsonl.xz").write_bytes(lzma.compress(other.read_bytes()))
    plain = journal(tmp_path / "plain.jsonl", events(2.0), {"M": 5})
    packed = tmp_path / "packed.jsonl.xz"
    packed.write_bytes(lzma.compress(journal(tmp_path / "x.jsonl", events(2.0), {"M": 6}).read_bytes()))
    assert main(["cache", "import", str(folder), str(plain), str(packed), "--folder", there]) == 0
    out, err = capsys.readouterr()
    assert out == "4 results imported\n"
    assert [line.rpartition(": ")[2] for line in err.splitlines()] == [
        "it has no winner", "an older atune began the run, and did not record what its result depends on",
        "it has not ended",
    ]  # fmt: skip
    found = as_json(capsys, "ls", "--folder", there)["results"]
    assert sorted(each["problem"]["M"] for each in found) == [1, 5, 6, 7]
    assert main(["cache", "import", str(plain), "--folder", there]) == 0
    out, err = capsys.readouterr()
    assert out == "0 results imported\n" and err == f"atune: {plain} is left out: it is there already\n"
    (tmp_path / "empty").mkdir()
    assert main(["cache", "import", str(tmp_path / "empty"), "--folder", there]) == 2
    assert "empty has no journals: give a journal" in capsys.readouterr().err
    assert json.loads(printed(capsys, "export", "--folder", there))["entries"][0]["config"]
    shown = printed(
        capsys, "show", next(each["key"] for each in found if each["problem"] == {"M": 1}), "--folder", there
    )
    assert "block=16" in shown and "block=32" in shown, "every candidate is known"


def test_an_older_journal_replaces_no_later_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = [msgspec.structs.replace(event, time=9.0) for event in events(1.0)]
    for name, run, new in (("a", later, 1), ("b", events(3.0), 0)):
        path = journal(tmp_path / name, run, {"M": 1})
        assert as_json(capsys, "import", str(path), "--folder", str(tmp_path / "c")) == {"imported": new}
    [found] = as_json(capsys, "ls", "--folder", str(tmp_path / "c"))["results"]
    assert found["latency_ms"] == 1.0


def test_a_bucket_says_what_was_tuned_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ResultCache(tmp_path / "c")
    there.put(key(problem={"N": 8}, tuned_for={"M": 64, "N": 8}), events(1.0))
    there.put(key(problem={"key": 3}, tuned_for={"M": 64}), events(1.0))
    lines = printed(capsys, "ls", "--folder", str(tmp_path / "c"))
    assert "N=8 (tuned for M=64)" in lines and "key=3 (tuned for M=64)" in lines


def test_mistakes(cache: ResultCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{__file__}: this is not a file of exported results" in printed(capsys, "import", __file__, status=2)
    assert "cannot read" in printed(capsys, "import", str(tmp_path / "none"), status=2)
    assert "cannot write" in printed(capsys, "export", "-o", str(tmp_path / "none" / "x"), status=2)
    assert "  import  " in printed(capsys)


def test_an_empty_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "none")
    assert printed(capsys, "ls", "--folder", folder) == "no results\n"
    assert as_json(capsys, "clear", "--folder", folder) == {"removed": 0}
    assert json.loads(printed(capsys, "export", "--folder", folder))["entries"] == []
    assert not Path(folder).exists()


def test_ls_shows_keys_as_arguments_by_name(cache: ResultCache, capsys: pytest.CaptureFixture[str]) -> None:
    cache.put(key(kernel="add", problem={"dtype": {"$dtype": "float32"}, "M": {"$dynamic": "m"}}), events(1.0))
    cache.put(key(kernel="none", problem={}), events(1.0))
    lines = printed(capsys, "ls").splitlines()
    assert any("add" in line and "dtype=float32, M=m " in line for line in lines)
    assert any("none" in line and "no arguments" in line for line in lines)


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    ResultCache(tmp_path).path.write_bytes(b"no database" * 100)
    command = [sys.executable, "-m", "atune", "cache", "ls", "--folder", str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "no results\n")
    [line] = done.stderr.splitlines()
    assert line.startswith("atune: warning: ") and str(tmp_path) in line
