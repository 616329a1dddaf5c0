"""The files that commands write: never in a journal's place, and whole or not at all."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import environment

from atune.errors import JournalError, UsageError
from atune.frontends.cli.main import main
from atune.journal.merge import merge
from atune.journal.reader import replay
from atune.journal.writer import write_output

DATA = Path(__file__).parents[1] / "data" / "schema-1.jsonl"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA, tmp_path / "run.jsonl"))


@contextmanager
def full_disk(size: int = 1000) -> Iterator[None]:
    """A file size limit stands for the full disk: the write that meets it is partial, as on a real one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("command", ["report J -o {}", "export J --to csv -o {}", "cache export -o {}"])
@pytest.mark.parametrize("target", ["another", "a damaged one", "a link to it"])
def test_an_output_in_a_journals_place_is_refused(
    command: str, target: str, journal: Path, tmp_path: Path, capsys: Any
) -> None:
    other = Path(shutil.copy(DATA, tmp_path / "other"))
    if target == "a damaged one":
        other.write_bytes(DATA.read_bytes().replace(b'"seq":0', b'"seq":7', 1))
    elif target == "a link to it":
        other.unlink()
        other.symlink_to(journal)
    before = other.read_bytes(), journal.read_bytes()
    assert main([str(journal) if word == "J" else word.format(other) for word in command.split()]) == 2
    assert capsys.readouterr().err == (
        f"atune: error: {other} is a journal, which is never overwritten: give another file\n"
    )
    assert (other.read_bytes(), journal.read_bytes()) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"run.jsonl", "other"}


def test_a_full_disk_leaves_the_old_file(journal: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    words = ["report", str(journal), "-o", str(output)]
    for old in (None, "what was there"):
        if old:
            output.write_text(old)
        with full_disk(10):
            assert main(words) == 2
        assert f"cannot write {output}: File too large" in capsys.readouterr().err
        assert (output.read_text() if old else output.exists()) == (old or False)
        assert {path.name for path in tmp_path.iterdir()} <= {"run.jsonl", "out"}
    output.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(output)
    assert main([word.replace(str(output), str(link)) for word in words]) == 0
    assert link.is_symlink() and output.stat().st_mode & 0o777 == 0o640 and output.read_text() != old


def test_a_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the folder that a link leads to. Where the working directory is gone, there is none to name."""
    link, gone = tmp_path / "link", tmp_path / "gone"
    link.symlink_to(gone / "x")
    for path in (link, gone / "x"):
        with pytest.raises(UsageError, match=f"cannot write {path}: there is no folder {gone}; create it first$"):
            write_output(str(path), b"")
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match=r"cannot write x: No such file or directory$"):
        write_output("x", b"")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_decides_on_the_mode_of_an_output_and_stays_as_it_is(
    mask: int, mode: int, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("a library has no say in it, not for a moment"))
            for command in ("report J -o report", "export J --to csv -o csv", "export J --to json -o json"):
                words = [str(journal) if word == "J" else word for word in command.split()]
                assert main([*words[:-1], str(tmp_path / words[-1])]) == 0
            assert main(["cache", "export", "-o", str(tmp_path / "cache.json")]) == 0
            replay(journal).report(tmp_path / "page")
    finally:
        os.umask(before)
    made = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path != journal}
    assert made == dict.fromkeys(("report", "csv", "json", "cache.json", "page"), mode)


def test_merging_onto_a_full_disk_leaves_no_half_a_journal(journal: Path, tmp_path: Path) -> None:
    output = tmp_path / "merged"
    with full_disk(), pytest.raises(JournalError, match=rf"cannot write the journal {output}: .*ulimit -f"):
        merge([journal], output)
    assert list(tmp_path.iterdir()) == [journal]
    merge([journal], output)
    assert replay(output).best_config == replay(journal).best_config and output.stat().st_mode & 0o777 == 0o600
    with pytest.raises(JournalError, match="exists and is not empty"):
        merge([journal], output)
    with pytest.raises(JournalError, match="exists and is not empty"):
        merge([journal], journal)


def test_an_output_may_be_a_pipe_or_a_device(journal: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["export", str(journal), "--to", "csv", "-o", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    assert main(["export", str(journal), "--to", "csv", "-o", "/dev/full"]) == 2
    assert "cannot write /dev/full: No space left" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "atune", "export", str(journal), "--to", "csv", "-o", str(tmp_path / "pipe")]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as process:
        read = (tmp_path / "pipe").read_text()
        assert process.wait(30) == 0
    assert read.startswith("index,key,status") and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("command", ["report J -o {}", "export J --to csv -o {}"])
def test_an_output_in_the_place_of_a_kernels_source_is_refused(
    command: str, journal: Path, tmp_path: Path, capsys: Any
) -> None:
    (source := tmp_path / "kernel.py").write_text("x = 1")
    assert main([str(journal) if word == "J" else word.format(source) for word in command.split()]) == 2
    assert source.read_text() == "x = 1" and "kernel.py is a Python source file" in capsys.readouterr().err
