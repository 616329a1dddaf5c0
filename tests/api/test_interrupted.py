"""A script that Ctrl-C ends while it tunes: one line, and a journal that has what was measured."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from atune import tune
from atune.engine.run_state import Recorder
from atune.journal.reader import replay
from atune.testing import FakeMachine

TESTS = Path(__file__).parents[1]
LINE = re.compile(r"tuning interrupted; (\d+) measurements? kept in (.+); to continue, tune again with")


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
    [kept] = (tmp_path / "cache" / "journals").glob("*.jsonl")
    assert Path(found[2]) == kept and kept.name.startswith("endless-") and kept.stat().st_mode & 0o777 == 0o600
    result = replay(kept)
    assert result.measured == int(found[1]) >= 1 and not result.finished


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
    assert raised.value.__notes__ == ["tuning interrupted; 0 candidates measured, but no journal kept"]
    assert not (tmp_path / "run.jsonl").exists()
