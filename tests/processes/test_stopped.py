"""Deadlines, where the program or its processes are stopped: Ctrl-Z, SIGSTOP, a suspended machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from fork_servers import fork_server
from processes import environment, wait_until

from atune.errors import WorkerError
from atune.workers.processes import pool
from atune.workers.processes.server import ForkServerProcess
from atune.workers.system.resources import TICK_S, Deadline

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parents[1]
LIMIT_S = 1.0


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(HERE))
    return str(tmp_path / "run")


async def test_what_came_in_the_last_tick_is_seen_before_the_deadline_is_told() -> None:
    waiting, looked = Deadline(TICK_S / 50), 0
    with pytest.raises(TimeoutError):
        while True:
            looked += 1
            await waiting.wait(anyio.sleep_forever)
    assert looked >= 2


class Program:
    """A program whose worker waits at `gate` in a call that may take `LIMIT_S`."""

    def __init__(self, tmp_path: Path) -> None:
        self.gate = tmp_path / "gate"
        os.mkfifo(self.gate)
        command = [sys.executable, str(HERE / "stopped_program.py"), str(tmp_path / "run"), str(self.gate)]
        self.process = subprocess.Popen(
            [*command, str(LIMIT_S)], stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )
        assert self.process.stdout is not None
        self.pids: list[int] = json.loads(self.process.stdout.readline())
        self.writer = -1
        wait_until(self._waiting, 30, "the worker at the gate")

    def _waiting(self) -> bool:
        with suppress(OSError):  # nobody reads yet
            self.writer = os.open(self.gate, os.O_WRONLY | os.O_NONBLOCK)
        return self.writer >= 0

    def stop(self, pids: list[int]) -> None:
        """Stop `pids` for longer than the call may take."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            wait_until(lambda pid=pid: state(pid) == "T", 10, "the stop")
        time.sleep(1.5 * LIMIT_S)

    def go_on(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def open_gate(self) -> None:
        """Have the worker answer."""
        os.close(self.writer)
        self.writer = -1

    def result(self) -> str:
        return self.process.communicate(timeout=60)[0].strip()

    def close(self) -> None:
        if self.writer >= 0:
            self.open_gate()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.close()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_an_answer_that_came_while_the_program_was_stopped_counts(program: Program, anyio_backend: str) -> None:
    program.stop(only := [program.process.pid])
    program.open_gate()
    program.go_on(only)
    assert program.result() == "answered"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_time_in_which_everything_was_stopped_does_not_count(program: Program, anyio_backend: str) -> None:
    everything = [program.process.pid, *program.pids]
    program.stop(everything)
    program.go_on(everything)
    program.open_gate()
    assert program.result() == "answered"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_a_worker_that_alone_is_stopped_runs_into_its_deadline(program: Program, anyio_backend: str) -> None:
    program.stop(program.pids[1:])
    assert program.result() == "timeout"


async def test_a_server_that_never_comes_up_is_an_error(
    run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "waits_at_import.py").write_text(f"print('begun', flush=True)\nopen({str(tmp_path / 'gate')!r}).read()")
    monkeypatch.syspath_prepend(str(tmp_path))
    parked: list[ForkServerProcess] = []
    monkeypatch.setattr(pool, "START_TIMEOUT_S", 0.5)
    server = fork_server(run_dir, ["waits_at_import"], park=parked.append)
    with anyio.fail_after(30), pytest.raises(WorkerError, match=r"did not import waits_at_import within 0.5 s"):
        async with server:
            await server.spawn("test")
    assert not parked, "the next run would wait for it, too"


async def test_a_server_that_is_stopped_before_it_forks_is_an_error(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("first")
        os.kill(server.pids()[0], signal.SIGSTOP)
        monkeypatch.setattr(pool, "START_TIMEOUT_S", 0.3)
        with anyio.fail_after(30), pytest.raises(WorkerError, match=r"did not fork second-1 within 0.3 s: .*stopped"):
            await server.spawn("second")
        assert await worker.call("pool_targets:echo", b"x") == b"x", "who was there goes on"
