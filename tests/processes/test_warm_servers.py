"""A fork server waits for the next run: one that the last run left, or one that was started early."""

from __future__ import annotations

import gc
import multiprocessing.process
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from processes import MARK, environment, marked, new_mark, wait_until

import atune
from atune.frontends.cli.main import main
from atune.journal.events import Event, RunFinished
from atune.workers import server as servers
from atune.workers import server_main
from atune.workers.pool import ForkServer
from atune.workers.server import ForkServerProcess, parked

WORKLOADS = Path(__file__).parents[1] / "workloads.py"
SCALE = f"{WORKLOADS}:SCALE"


def waiting() -> list[ForkServerProcess]:
    return [parked.server] if parked.server is not None else []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that import nothing, and a program that has none yet."""
    atune.shutdown()
    monkeypatch.delenv(servers.WARM_VARIABLE, raising=False)
    monkeypatch.setattr(servers, "PRELOAD", ())
    servers.warm_early.cache_clear()


def test_shutdown_ends_it_and_a_run_takes_over_the_server_that_warm_started() -> None:
    """What workers wrote does not pile up in its folder, which ends with it."""
    for _ in range(2):
        atune.run(SCALE, target="c")
        [server] = waiting()
        assert sorted(path.name for path in server.folder.iterdir()) == ["fork-server.log", "tilelang"]
    atune.shutdown()
    assert waiting() == [] and not server.folder.exists() and not Path(f"/proc/{server.pid}").exists()
    atune.warm()
    [server] = waiting()
    atune.warm()
    assert waiting() == [server], "a second call starts another"
    with ThreadPoolExecutor() as other_thread:
        assert other_thread.submit(atune.run, SCALE, target="c").result().measured == 2
    assert waiting() == [server] and server.returncode is None


@pytest.mark.anyio
async def test_a_cancellation_while_the_server_is_left_warm_ends_the_run() -> None:
    """The run has finished, and its workers are being reaped."""
    finished = anyio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, RunFinished):
            finished.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: atune.tune(SCALE, target="c", on_event=on_event))
            await finished.wait()
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_failed_run_leaves_one(quick: None) -> None:
    """The next run forks from it, and nothing else of the first is left."""
    process = servers.taken()
    with suppress(ValueError):
        async with ForkServer(process, park=parked.park) as server:
            worker = await server.spawn("first")
            raise ValueError
    assert waiting() == [process] and server.pids() == [] and not worker.alive
    async with ForkServer(servers.taken(), park=parked.park) as server:
        assert waiting() == [] and (await server.spawn("second")).alive
    assert waiting() == [process]


PROGRAM = """
    import os, sys
    import atune
    from atune.workers.server import parked

    atune.run(sys.argv[1], target="c")
    server = parked.server
    child = os.fork()
    if child == 0:
        assert parked.server is None and server.lifeline == -1
        print("child", atune.run(sys.argv[1], target="c").measured, flush=True)
        sys.exit(0)  # runs the exit handlers, which must leave the parent's server alone
    os.waitpid(child, 0)
    assert server.returncode is None
    measured = atune.run(sys.argv[1], target="c").measured
    print("parent", measured, parked.server is server, flush=True)
"""


def test_forked_children_do_without_and_nothing_outlives_the_program(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    mark = new_mark()
    program = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script), SCALE],
        env={**environment(), MARK: mark, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True, timeout=170,
    )  # fmt: skip
    assert (program.returncode, program.stdout) == (0, "child 2\nparent 2 True\n")
    wait_until(lambda: not marked(mark), 2, "the end of all processes")
    assert not list(tmp_path.glob("atune-*/*-*/")), "folders are left over"


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "variable": lambda patch: patch.setenv("ATUNE_TEST_SOMETHING", "1"),
    "folder": lambda patch: patch.chdir("/"),
    "limit": lambda patch: patch.setattr(resource, "getrlimit", lambda which: (200, 200)),
    "cores": lambda patch: patch.setattr(os, "sched_getaffinity", lambda pid: {99}),
    "end": lambda patch: (waiting()[0].hang_up(), waiting()[0]._process.wait()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_server_of_other_surroundings_is_ended_and_another_started(
    quick: None, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    atune.warm()
    [before] = waiting()
    CHANGES[change](monkeypatch)
    server = servers.taken()
    assert server is not before and not Path(f"/proc/{before.pid}").exists()
    server.destroy()


def test_signs_start_it_once_a_program(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ended it has it back by `warm`, and not by the next definition. They can be switched off."""
    with monkeypatch.context() as patch:
        patch.setenv(servers.WARM_VARIABLE, "off")
        servers.warm_early()
        assert waiting() == []
    servers.warm_early.cache_clear()
    servers.warm_early()
    assert len(waiting()) == 1
    atune.shutdown()
    servers.warm_early()
    assert waiting() == []


def test_neither_a_worker_nor_a_child_of_multiprocessing_starts_one(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They load the program's or the workload's file, too. A loader of data has dozens of children."""
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.process, "parent_process", lambda: "the program")
        servers.warm_early()
    monkeypatch.setenv(server_main.WORKER, str(os.getpid()))
    servers.warm_early.cache_clear()
    servers.warm_early()
    atune.warm()
    assert waiting() == []


@pytest.mark.parametrize("dry", [False, True])
def test_atune_tune_starts_it_before_all_else(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dry: bool
) -> None:
    """But for a dry run, and before the command looks at its arguments: here at a file that is not there."""
    started, start = [], servers.started
    monkeypatch.setattr(servers, "started", lambda *preload: (started.append(1), start(*preload))[1])
    assert main(["tune", "missing.py:WORKLOAD", *(["--dry-run"] if dry else [])]) == 2
    assert len(started) == len(waiting()) == (0 if dry else 1)
    assert "missing.py" in capsys.readouterr().err


@pytest.mark.parametrize("enabled", [True, False])
def test_imports_leave_collections_on_or_off_as_they_were(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    during = list[bool]()
    monkeypatch.setattr(server_main.importlib, "import_module", lambda name: during.append(gc.isenabled()))
    monkeypatch.setattr(gc, "freeze", lambda: during.append(gc.isenabled()))
    (gc.enable if enabled else gc.disable)()
    try:
        server_main.import_all(["one"])
        assert during == [False, False] and gc.isenabled() == enabled
    finally:
        gc.enable()


DROP_IN = """
    import gc
    from atune.workers import server
    server.PRELOAD = ()
    import atune.compat.tilelang
    assert gc.isenabled() and gc.get_freeze_count() > 100_000, "collections would go through tilelang's objects"
    waiting = server.parked.server
    import tilelang
    assert server.taken() is waiting, "imports made other surroundings"
    waiting.destroy()
"""


def test_importing_the_drop_in_starts_it(tmp_path: Path) -> None:
    """Before the program imports tilelang, after which the server still fits."""
    env = {name: value for name, value in environment().items() if name != servers.WARM_VARIABLE}
    program = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DROP_IN)],
        env={**env, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert program.returncode == 0, program.stderr
    assert program.stdout == program.stderr == ""
