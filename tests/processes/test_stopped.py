"""Deadlines, where the program or its processes are stopped: Ctrl-Z, SIGSTOP, a suspended machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from fork_servers import fork_server
from processes import environment, wait_until

from atune.errors import ServerLost, WorkerError
from atune.workers import pool
from atune.workers.server import ForkServerProcess
from atune.workers.waiting import TICK_S, Deadline

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parents[1]
LIMIT_S = 1.0


async def test_what_came_in_the_last_tick_is_seen_before_the_deadline_is_told() -> None:
    waiting, looked = Deadline(TICK_S / 50), 0
    with pytest.raises(TimeoutError):
        while True:
            looked += 1
            await waiting.wait(anyio.sleep_forever)
    assert looked >= 2


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", 10, "the stop")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("stopped", "ends"), [("the program", "answered"), ("everything", "answered"), ("the worker", "timeout")]
)
def test_time_in_which_the_program_is_stopped_does_not_count(
    stopped: str, ends: str, tmp_path: Path, anyio_backend: str
) -> None:
    """Its worker waits at a gate, in a call that may take `LIMIT_S`, and answers while it is stopped, or after.

    A worker that alone is stopped runs into its deadline.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, str(HERE / "stopped_program.py"), str(tmp_path / "run"), str(gate), str(LIMIT_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as program:
        assert program.stdout is not None
        server, worker = json.loads(program.stdout.readline())
        with gate.open("w") as writer:  # the worker is there
            every = {"the program": [program.pid], "everything": [program.pid, server, worker], "the worker": [worker]}
            for pid in every[stopped]:
                stop(pid)
            time.sleep(1.5 * LIMIT_S)
            if stopped == "the program":
                writer.close()
            for pid in every[stopped] if stopped != "the worker" else []:
                os.kill(pid, signal.SIGCONT)
            if stopped == "everything":
                writer.close()
            assert program.communicate(timeout=60)[0].strip() == ends


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


async def test_a_server_that_is_stopped_is_replaced_after_a_short_wait(
    run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork takes milliseconds. Nobody waits for the long limit, and no other run gets the stopped server."""
    monkeypatch.setattr(pool, "FIRST_TIMEOUT_S", 0.3)
    second, parked = [ForkServerProcess((), tmp_path / "second", env={})], list[ForkServerProcess]()
    [new] = second
    async with fork_server(run_dir, park=parked.append, again=second.pop) as server:
        before = await server.spawn("first")
        stop(server.pids()[0])
        with anyio.fail_after(30), pytest.raises(ServerLost, match=r"did not fork second-1 within 0.3 s"):
            await server.spawn("second")
        assert not before.alive
        assert await (await server.spawn("third")).call("pool_targets:echo", b"x") == b"x"
    assert parked == [new], "the new one does answer"
    new.destroy()


async def test_a_server_that_is_stopped_while_it_imports_is_replaced(
    run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stops_at_import.py").write_text("import os\nos.kill(os.getpid(), 19)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(pool, "FIRST_TIMEOUT_S", 2.0)
    second = [ForkServerProcess((), tmp_path / "second", env={})]
    async with fork_server(run_dir, ["stops_at_import"], again=second.pop) as server:
        with anyio.fail_after(30):
            assert await (await server.spawn("first")).call("pool_targets:echo", b"x") == b"x"
        assert not second


async def test_a_server_that_did_not_answer_a_kill_is_not_parked(run_dir: str) -> None:
    parked = list[ForkServerProcess]()
    async with fork_server(run_dir, park=parked.append) as server:
        worker, [pid, *_] = await server.spawn("first"), server.pids()
        stop(pid)
        with anyio.fail_after(30):
            await worker.kill(0.2)
    assert not parked and not Path(f"/proc/{pid}").exists()
