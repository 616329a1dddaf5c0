"""`bench/record.py`: what it keeps, skips, resumes and prints."""

from __future__ import annotations

import importlib.util
import lzma
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import record
from counted import Finished

from atune.journal.events import RunStarted
from atune.journal.reader import read, replay

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads.py"
SLICED = f"{WORKLOADS}:SLICED"
NAME = "workloads_sliced"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the recording of a space of two candidates, tuned on the CPU."""
    out = tmp_path_factory.mktemp("recorded")
    assert record.main(["--spaces", SLICED, "--target", "c", "--out", str(out)]) == 0
    yield out


class Scripted:
    """In place of `run_counted`: leaves a journal's first lines, and gives how the run ended."""

    def __init__(self, journal: bytes, *, lines: int | None = None, status: int = 0, timed_out: bool = False) -> None:
        self.lines = journal.splitlines(keepends=True)[:lines]
        self.status, self.timed_out = status, timed_out
        self.found: list[bytes] = []
        """What each run found in its journal's place."""
        self.timeouts: list[float] = []

    def __call__(self, command: Sequence[str], *, env: dict[str, str], cwd: Path, timeout_s: float) -> Finished:
        journal = Path(command[command.index("--journal") + 1])
        self.found.append(journal.read_bytes() if journal.exists() else b"")
        self.timeouts.append(timeout_s)
        journal.write_bytes(b"".join(self.lines))
        return Finished(self.status, 1.0, 1.0, 0.0, self.timed_out, "atune: error: it broke\n{}\n")


def whole(recorded: Path) -> bytes:
    return lzma.decompress((recorded / f"{NAME}.jsonl.xz").read_bytes())


def play(monkeypatch: pytest.MonkeyPatch, script: Scripted, out: Path, *more: str) -> int:
    monkeypatch.setattr(record, "run_counted", script)
    return record.main(["--spaces", SLICED, "--out", str(out), *more])


def test_a_recording_holds_the_whole_run(recorded: Path) -> None:
    assert sorted(path.name for path in recorded.iterdir()) == ["table.md", f"{NAME}.jsonl.xz"]
    with record.opened(recorded / f"{NAME}.jsonl.xz") as journal:
        result = replay(journal)
        header = read(journal)[0]
    assert result.finished and result.measured == result.total == 2 and result.remaining == 0
    assert isinstance(header, RunStarted) and header.settings["compile"]["store"] is False
    row = next(line for line in (recorded / "table.md").read_text().splitlines() if NAME in line)
    assert [cell.strip() for cell in row.split("|")][2:6] == ["2", "2", "0", "0"]


def test_a_recording_names_no_path_of_the_machine(recorded: Path) -> None:
    """Paths are cut to what is below the repository, and checksums hold."""
    text = whole(recorded).decode()
    assert '"origin":"tests/workloads.py:SLICED"' in text
    assert str(record.ROOT) not in text and record.SCRATCH not in text and not re.search(r'"/\w', text)


def test_paths_in_the_text_of_failures_are_cut() -> None:
    tilelang = importlib.util.find_spec("tilelang")
    assert tilelang is not None and tilelang.origin is not None
    text = f"{record.ROOT}/atune/x.py, {tilelang.origin}, {os.__file__}, /tmp/a-b/record-x1_y/work/k.cu: /usr/bin/g++"
    body = b'{"detail":"%b"}' % text.encode()
    line = record.without_paths(b'{"crc":"00000000","event":%b}\n' % body)
    assert record.json_body(line) == (b'{"detail":"atune/x.py, tilelang/__init__.py, os.py, work/k.cu: /usr/bin/g++"}')


def test_what_is_recorded_is_skipped_with_resume_and_never_replaced(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(recorded, out)
    before = (out / f"{NAME}.jsonl.xz").read_bytes()
    script = Scripted(b"")
    with pytest.raises(SystemExit, match=f"has {NAME}: give --resume"):
        play(monkeypatch, script, out)
    assert play(monkeypatch, script, out, "--resume") == 0
    assert not script.found and (out / f"{NAME}.jsonl.xz").read_bytes() == before


def test_a_run_cut_short_keeps_its_journal_and_goes_on(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = whole(recorded)
    half = Scripted(journal, lines=8, timed_out=True, status=-9)
    assert play(monkeypatch, half, tmp_path, "--space-limit", "5") == 1
    assert half.timeouts == [5.0] and not (tmp_path / f"{NAME}.jsonl.xz").exists()
    printed = capsys.readouterr()
    assert f"{NAME}: 2 of 2 are left after 1 s" in printed.err and f"{NAME} (unfinished) | 0 of 2" in printed.out
    with pytest.raises(SystemExit, match="give --resume"):
        play(monkeypatch, half, tmp_path)
    rest = Scripted(journal)
    assert play(monkeypatch, rest, tmp_path, "--resume") == 0
    assert rest.found == [b"".join(half.lines)]
    assert whole(tmp_path) == journal and not (tmp_path / f"{NAME}.jsonl").exists()
