"""A script that Ctrl-C ends while it tunes: one line, and a journal that has what was measured. Journals by default."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from event_streams import Stream
from teaching_kernels import N, times

from atune import Workload, run, tune
from atune.engine.run_state import Recorder
from atune.frontends.api import default_journal
from atune.frontends.api.tune_set import read_set
from atune.frontends.api.tuner import tune_apart
from atune.journal.replay import replay
from atune.journal.set_folder import entered
from atune.journal.writer import Journal, write_journal
from atune.model.problem import Problem
from atune.testing import FakeMachine

TESTS = Path(__file__).parents[1]
GOOD = Stream(total=3).candidate(0, 2.0).candidate(1, 1.0).events
LINE = re.compile(
    r"tuning interrupted; (\d+) measured are kept in (.+); journal= takes it to continue, atune replay to show it"
)


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


@pytest.mark.usefixtures("with_a_terminal")
@pytest.mark.parametrize("how", ["run", "await"])
def test_a_script_with_a_journal_ends_with_one_line_that_names_it(tmp_path: Path, how: str) -> None:
    journal = tmp_path / "my run.jsonl"
    status, out, lines = ended_by_ctrl_c(tmp_path, how, str(journal))
    assert "measured" in out and status == -signal.SIGINT
    [line] = [line for line in lines if "tuning interrupted" in line]
    found = LINE.search(line)
    assert found is not None and found.groups() == (str(replay(journal).measured), f"'{journal}'")


@pytest.mark.usefixtures("with_a_terminal")
def test_a_script_without_a_journal_keeps_one_in_the_cache_folder(tmp_path: Path) -> None:
    status, out, lines = ended_by_ctrl_c(tmp_path, "run", "real")
    assert "measured" in out and status == -signal.SIGINT, lines
    found = LINE.search(lines[-1])
    assert found is not None, lines
    [kept] = (tmp_path / "cache" / "journals").iterdir()
    assert Path(found[2]) == kept and kept.name.startswith("endless-") and kept.stat().st_mode & 0o777 == 0o600
    result = replay(kept)
    assert result.measured == int(found[1]) >= 1 and not result.finished


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("how", "then"),
    [
        (tune, "journal= takes it to continue, atune replay to show it"),
        (partial(tune_apart, taken_up=True), "the next call continues"),
    ],
)
async def test_only_what_a_call_of_a_decorated_kernel_measured_is_taken_up_by_the_next(
    how: Any, then: str, tmp_path: Path
) -> None:
    """Such a call takes no `journal=`. A folder's name says nothing."""
    journal, scope = tmp_path / default_journal.RUNNING / "key.jsonl", anyio.CancelScope()
    journal.parent.mkdir()
    with scope, pytest.raises(anyio.get_cancelled_exc_class()) as raised:
        await how(None, machine=FakeMachine(2), journal=journal, on_event=lambda _: scope.cancel())
    assert raised.value.__notes__ == [f"tuning interrupted; 0 measured are kept in {journal}; {then}"]


@pytest.mark.anyio
async def test_a_run_that_ends_before_its_first_event_names_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = anyio.CancelScope()

    async def end(*_: object) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    monkeypatch.setattr(Recorder, "go_on", end)
    with scope, pytest.raises(anyio.get_cancelled_exc_class()) as raised:
        await tune(machine=FakeMachine(2), journal=tmp_path / "run.jsonl")
    assert raised.value.__notes__ == ["tuning interrupted; 0 measured, and no journal kept"]
    assert not (tmp_path / "run.jsonl").exists()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the journals of runs that were given none."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    return tmp_path / "journals"


def test_a_run_without_a_journal_writes_one_and_its_result_names_it(folder: Path) -> None:
    result = run(Workload(times, {"block": [16]}, arguments={"N": N}), target="c", budget=1)
    assert result.journal is not None and Path(result.journal).parent == folder
    assert replay(result.journal).best_config == result.best_config


def test_a_fake_machine_leaves_no_journal(folder: Path) -> None:
    assert run(machine=FakeMachine(2)).journal is None and not folder.exists()


def test_the_newest_journals_are_kept_and_one_that_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_journal, "KEPT", 3)
    with default_journal.Journal.create(folder / "written.jsonl") as journal:
        journal.append(GOOD[0])
        os.utime(folder / "written.jsonl", (1, 1))
        for age in range(4):
            write_journal(str(folder / f"{age}.jsonl"), GOOD)
            os.utime(folder / f"{age}.jsonl", (100 - age, 100 - age))
        (folder / "page.html").write_text("not a journal")
        path = default_journal.default_journal("a name/with more")
    assert sorted(os.listdir(folder)) == ["0.jsonl", "1.jsonl", "page.html", "written.jsonl"]
    assert path.parent == folder and path.name.startswith("a_name_with_more-")


@pytest.mark.parametrize("used", ["set", "journal", None])
def test_a_set_is_deleted_like_a_journal_unless_it_is_written(
    folder: Path, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_journal, "KEPT", 1)
    [journal], lock = entered(folder / "old", [Problem({"M": 1})])
    if used != "set":
        lock.close()
    write_journal(str(journal), GOOD)
    writer = Journal.reopen(journal)[0] if used == "journal" else None
    write_journal(str(folder / "new.jsonl"), GOOD)
    default_journal.default_journal("run")
    assert os.listdir(folder) == ([] if used is None else ["old"])
    if used is not None:
        assert read_set(folder / "old").folder == folder / "old" and journal.stat().st_size
    lock.close()
    if writer is not None:
        writer.close()


def test_without_a_folder_to_write_a_run_has_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    (tmp_path / "journals").write_text("no folder")
    assert default_journal.opened_journal("run") is None
