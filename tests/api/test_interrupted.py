"""A script that Ctrl-C ends while it tunes: one line, and a journal that has what was measured."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream

from atune.api import interrupted
from atune.journal.replay import replay
from atune.journal.spare import SpareJournal
from atune.journal.state import State

TESTS = Path(__file__).parents[1]
GOOD = Stream(total=3).candidate(0, 2.0).candidate(1, 1.0)


def ended_by_ctrl_c(tmp_path: Path, how: str, where: str) -> tuple[int, str, list[str]]:
    """Run the script, send it SIGINT once something is measured; return its status, stdout and lines on stderr."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "ATUNE_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(TESTS / "interrupted_script.py"), how, where]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, first + out, err.splitlines()


@pytest.mark.parametrize("how", ["run", pytest.param("await", marks=pytest.mark.asked)])
def test_a_script_with_a_journal_ends_in_one_line_that_names_it(tmp_path: Path, how: str) -> None:
    journal = tmp_path / "my run.jsonl"
    status, out, lines = ended_by_ctrl_c(tmp_path, how, str(journal))
    assert "measured" in out and status == -signal.SIGINT
    [line] = lines
    n = replay(journal).measured
    assert line.startswith(f"atune: tuning interrupted; {n} measured are kept in '{journal}'") and n >= 1


def test_a_script_without_a_journal_keeps_one_in_the_cache_folder(tmp_path: Path) -> None:
    status, out, lines = ended_by_ctrl_c(tmp_path, "run", "real")
    assert "measured" in out and status == -signal.SIGINT, lines
    [line] = lines
    found = re.fullmatch(r"atune: tuning interrupted; (\d+) measured are kept in (\S+): journal=\S+ goes on, .*", line)
    assert found is not None, line
    [kept] = (tmp_path / "cache" / "journals").iterdir()
    assert Path(found[2]) == kept and kept.name.startswith("endless-")
    result = replay(kept)
    assert result.measured == int(found[1]) >= 1 and not result.finished


@pytest.fixture(params=["nameless", "hidden"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, on a file system that has nameless files and on one that has none."""
    if request.param == "hidden":
        opened = os.open

        def refusing(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError("no nameless files here")
            return opened(path, flags, *arguments, **options)

        monkeypatch.setattr(os, "open", refusing)
    return tmp_path / "journals"


def test_a_spare_journal_that_is_kept_can_be_replayed(folder: Path) -> None:
    spare = SpareJournal(folder)
    for event in GOOD.events:
        spare(event)
    path = spare.keep("run.jsonl")
    assert path is not None and replay(path).measured == 2 and os.listdir(folder) == ["run.jsonl"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_spare_journal_that_is_not_kept_leaves_nothing(folder: Path) -> None:
    spare = SpareJournal(folder)
    spare(GOOD.events[0])
    spare.close()
    assert os.listdir(folder) == [] and spare.keep("late.jsonl") is None
    spare(GOOD.events[1])  # a listener that has let go takes no harm


def test_where_the_folder_cannot_be_written_there_is_no_spare_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert SpareJournal.opened(tmp_path / "file") is None


def test_the_line_is_about_a_run_that_was_cancelled_a_moment_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(interrupted._last, "hook", lambda *_: print("as before", file=sys.stderr))
    state, spare = State(), interrupted.spare_journal()
    assert spare is not None
    for event in GOOD.events:
        state.apply(event)
        spare(event)
    interrupted.remember(state, None, spare)
    monkeypatch.setattr(interrupted._last, "at", interrupted._last.at - 2 * interrupted.SOON_S)
    assert interrupted.told() == "" and os.listdir(tmp_path / "journals") == []
    for error in (KeyboardInterrupt(), ValueError("another")):
        interrupted._shown_in_a_line(type(error), error, None)
    assert capsys.readouterr().err == "as before\nas before\n"
    interrupted.remember(state, "mine.jsonl", None)
    interrupted._shown_in_a_line(KeyboardInterrupt, KeyboardInterrupt(), None)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("atune: tuning interrupted; 2 measured are kept in mine.jsonl: journal='mine.jsonl' goes on")
