"""Whole runs with a resident server that has tilelang imported: used where it fits, and the header says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import residents
from processes import wait_until

import atune
from atune.cli.main import main
from atune.journal.events import Event, RunResumed, RunStarted
from atune.journal.reader import read
from atune.local import resident_control

TESTS = Path(__file__).parents[1]
SCALE = f"{TESTS / 'workloads.py'}:SCALE"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with residents.with_tilelang(tmp_path_factory.mktemp("runtime")) as pid:
        yield pid


def header(**options: object) -> str:
    """Run SCALE to its end and return what its header says of the fork server."""
    events: list[Event] = []
    result = atune.run(SCALE, target="c", on_event=events.append, **options)  # type: ignore[arg-type]
    assert result.measured == 2 and result.best is not None
    [started] = [event for event in events if isinstance(event, RunStarted)]
    return started.fork_server


def test_a_run_uses_a_session_and_a_second_one_of_the_program_the_same(server: int) -> None:
    atune.shutdown()
    before = residents.status()
    assert before["threads"] == 1, "threads in the server when it forks"
    assert header() == header() == "resident"
    now = residents.status()
    assert now["pid"] == server and now["sessions"] == before["sessions"] + 1 == 1
    atune.shutdown()
    wait_until(lambda: residents.status()["sessions"] == 0, 5, "the session's end")


def test_cuda_is_not_started_in_the_server(server: int) -> None:
    """Its library is not even loaded: a forked process could not use a driver that was started before."""
    maps = Path(f"/proc/{server}/maps").read_text()
    assert "libtorch" in maps and "libcuda.so" not in maps
    links = list[str]()
    for fd in os.listdir(f"/proc/{server}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"/proc/{server}/fd/{fd}"))
    assert links and not [link for link in links if link.startswith("/dev/nvidia")]


def test_where_it_does_not_fit_a_fresh_one_is_started_and_the_header_says_why(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_SOMETHING", "1")
    why = "a fresh one, because the resident server cannot be used: it was started with another TVM_SOMETHING"
    assert header() == why


@pytest.mark.asked
def test_a_program_that_has_imported_tilelang_uses_it_too(server: int) -> None:
    """As those do that decorate kernels, or use atune.compat: the import has set variables."""
    script = f"""if True:
        import tilelang, atune
        events = []
        atune.run({SCALE!r}, target="c", on_event=events.append)
        print([event.fork_server for event in events if type(event).__name__ == "RunStarted"])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["['resident']"], done.stderr


def test_the_server_killed_in_the_middle_of_a_run(server: int, tmp_path: Path) -> None:
    """The run ends well, and a part that goes on says of itself what it used. Last: the server is gone."""
    atune.shutdown()
    killed: list[Event] = []

    def kill(event: Event) -> None:
        if isinstance(event, RunStarted):
            killed.append(event)
            os.kill(server, signal.SIGKILL)

    journal = tmp_path / "journal.jsonl"
    budget = atune.Budget(candidates=3)
    result = atune.run(SCALE, target="c", on_event=kill, journal=str(journal), budget=budget)
    assert result.measured >= 1 and len(killed) == 1 and not result.warnings
    atune.shutdown()
    assert atune.run(SCALE, target="c", journal=str(journal)).measured == 2
    said = [event.fork_server for event in read(journal) if isinstance(event, RunStarted | RunResumed)]
    assert said[0] == "resident" and "does not answer" in said[1]


def test_the_command_line_starts_shows_and_stops_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*argv: str) -> tuple[int, dict[str, object]]:
        status = main(["server", *argv, "--json"])
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    residents.prepare(monkeypatch, tmp_path / "runtime")
    try:
        assert said("status") == (1, {"pid": None})
        status, started = said("start", "--idle", "2m")
        assert status == 0 and started["started"] and started["idle_s"] == 120
        assert said("start")[1]["started"] is False
        assert main(["server", "status"]) == 0
        assert f"resident server {started['pid']}; up for " in capsys.readouterr().out
        monkeypatch.setenv("CUDA_HOME", "/elsewhere")
        assert said("status")[1]["misfit"] == "it was started with another CUDA_HOME"
        status, another = said("start")  # replaces it
        assert status == 0 and another["started"] and another["pid"] != started["pid"]
        assert said("stop") == (0, {"pid": another["pid"]})
        assert said("stop") == (0, {"pid": None})
    finally:
        resident_control.stop()
    assert main(["server", "start", "--idle", "soon"]) == 2
    assert "--idle 'soon': give a time" in capsys.readouterr().err
