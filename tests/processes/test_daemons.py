"""What a candidate or its compiler started in a session of its own ends with its worker, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from fork_servers import fork_server
from processes import MARK, environment, marked, new_mark, until, wait_until

from atune.errors import RemoteError, WorkerLost, WorkerTimeout
from atune.workers.pool import ForkServer, Worker
from atune.workers.server import ForkServerProcess
from atune.workers.server_main import children_of

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parents[1]
SLEEPERS = {"sleep 600", "sleep 601"}
"""The daemon, and its child in a further session."""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that every process of the test has; those that are left are killed."""
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    yield mark
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def sleepers(mark: str) -> list[str]:
    return [command for command in marked(mark).values() if command in SLEEPERS]


async def with_daemon(server: ForkServer, mark: str) -> Worker:
    """Return a worker that started a daemon and answered."""
    worker = await server.spawn("test")
    before = len(sleepers(mark))
    await worker.call("pool_targets:start_daemon", b"return")
    assert await until(lambda: len(sleepers(mark)) == before + 2, 30)
    return worker


async def test_a_daemon_lives_as_long_as_its_worker_and_no_longer(run_dir: str, mark: str) -> None:
    async with fork_server(run_dir) as server:
        first, second = await with_daemon(server, mark), await with_daemon(server, mark)
        await first.kill()
        assert await until(lambda: len(sleepers(mark)) == 2, 10)
        await second.call("pool_targets:echo", b"")
        assert len(sleepers(mark)) == 2, "the other worker's daemon goes on"
        await second.kill()
        assert await until(lambda: not sleepers(mark), 10)
        assert not children_of(server.pids()[0])


async def test_a_worker_that_crashes_runs_late_or_raises_takes_its_daemon_along(run_dir: str, mark: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        with pytest.raises(WorkerLost, match="SIGSEGV"):
            await worker.call("pool_targets:start_daemon", b"crash")
        assert await until(lambda: not sleepers(mark), 10)
        worker = await with_daemon(server, mark)
        with pytest.raises(WorkerTimeout):
            await worker.call("pool_targets:hold_gil", b"", timeout_s=0.2)
        assert await until(lambda: not sleepers(mark), 10)
        worker = await server.spawn("test")
        with pytest.raises(RemoteError):
            await worker.call("pool_targets:start_daemon", b"raise")
        assert await until(lambda: len(sleepers(mark)) == 2, 30)
        os.kill(worker.pid, signal.SIGKILL)
        assert await until(lambda: not sleepers(mark), 10)


@pytest.mark.parametrize("how", ["ends", "is left warm", "fails", "loses its server", "is cancelled", "stopped"])
async def test_no_daemon_is_left_when_a_run(how: str, run_dir: str, mark: str) -> None:
    """`stopped`: cancelled, while the server is stopped."""
    parked: list[ForkServerProcess] = []
    with suppress(ZeroDivisionError), anyio.CancelScope() as scope:
        async with fork_server(run_dir, park=parked.append if how == "is left warm" else None) as server:
            await with_daemon(server, mark)
            if how in ("loses its server", "stopped"):
                os.kill(server.pids()[0], signal.SIGKILL if how == "loses its server" else signal.SIGSTOP)
            if how == "loses its server":
                assert await until(lambda: not sleepers(mark), 10)
            if how == "fails":
                raise ZeroDivisionError
            if how in ("is cancelled", "stopped"):
                scope.cancel()
                await anyio.sleep_forever()
    assert len(parked) == (how == "is left warm")
    try:
        assert await until(lambda: not sleepers(mark), 10)
    finally:
        for process in parked:
            process.destroy()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("mode", "count"), [("preload", 1), ("daemon-forked", 7), ("daemon, server stopped", 7)])
def test_nothing_is_left_when_the_program_is_killed(
    run_dir: str, mark: str, mode: str, count: int, tmp_path: Path, anyio_backend: str
) -> None:
    """Within two seconds, also when a process forked off the program holds the lifeline open. `count`: processes."""
    mode, _, stopped = mode.partition(", ")
    (tmp_path / "gil_at_import.py").write_text("import ctypes\nctypes.PyDLL(None).sleep(30)")
    own = environment()
    env = {**own, MARK: mark, "PYTHONPATH": f"{tmp_path}:{own['PYTHONPATH']}"}
    command = [sys.executable, str(HERE / "pool_targets.py"), run_dir, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout
        child, server, *_ = json.loads(parent.stdout.readline())
        try:
            others = {parent.pid, child}
            wait_until(lambda: len(marked(mark).keys() - others) == count, 30, "the processes")
            if stopped:
                os.kill(server, signal.SIGSTOP)
            parent.kill()
            wait_until(lambda: marked(mark).keys() <= others, 2, "the end of all processes")
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
