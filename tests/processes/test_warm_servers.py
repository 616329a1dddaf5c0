"""A run leaves its fork server warm for the next one; nothing else, and not when it ended badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import pytest
from processes import MARK, marked, new_mark, wait_until

import atune
from atune.journal.events import ArtifactBuilt, CandidateLowered, Event, RunStarted
from atune.workers.processes.server import parked

WORKLOADS = Path(__file__).parents[1] / "workloads.py"
SCALE = f"{WORKLOADS}:SCALE"


def servers() -> list[int]:
    return [server.pid for server in parked._servers.values()]


def test_the_second_run_starts_at_once() -> None:
    """Its first artifact is there after its own lowering and compiling and a tenth of a second."""
    atune.run(SCALE, target="c")
    (server,) = servers()
    events: list[Event] = []
    atune.run(f"{WORKLOADS}:SLICED", target="c", on_event=events.append)
    assert servers() == [server]
    built = next(e for e in events if isinstance(e, ArtifactBuilt))
    lowered = [e for e in events if isinstance(e, CandidateLowered) and e.mono < built.mono]
    overhead = built.mono - built.seconds - sum(e.seconds for e in lowered)
    assert overhead < 0.5  # bench/compile_stages.py measures it; a cold start takes seconds of imports
    started = next(e for e in events if isinstance(e, RunStarted))
    assert started.mono < 0.5


def test_what_workers_wrote_does_not_pile_up_in_a_parked_servers_folder() -> None:
    for _ in range(2):
        atune.run(SCALE, target="c")
        [server] = parked._servers.values()
        assert [path.name for path in server.folder.iterdir()] == ["fork-server.log"]
    folder = server.folder
    atune.shutdown()
    assert not folder.exists()


@pytest.mark.anyio
async def test_it_is_warm_on_another_loop_and_in_another_thread() -> None:
    await atune.tune(SCALE, target="c")
    (server,) = servers()
    await anyio.to_thread.run_sync(lambda: atune.run(SCALE, target="c"))
    assert servers() == [server]


def test_another_environment_is_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    atune.run(SCALE, target="c")
    (first,) = servers()
    monkeypatch.setenv("ATUNE_TEST_SOMETHING", "1")
    atune.run(SCALE, target="c")
    assert len(servers()) == 1 and servers() != [first]
    assert not Path(f"/proc/{first}").exists()


def test_a_server_that_died_while_parked_is_replaced() -> None:
    atune.run(SCALE, target="c")
    (first,) = servers()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{first}/stat").read_text().split()[2] == "Z", 2, "its end")
    assert atune.run(SCALE, target="c").measured == 2
    assert servers() != [first]


def test_shutdown_ends_it_and_the_next_run_starts_another() -> None:
    atune.run(SCALE, target="c")
    (first,) = servers()
    atune.shutdown()
    assert servers() == [] and not Path(f"/proc/{first}").exists()
    assert atune.run(SCALE, target="c").measured == 2


@pytest.mark.anyio
async def test_a_cancelled_run_leaves_none() -> None:
    atune.shutdown()  # a cold one is not done in a second
    with anyio.move_on_after(1):
        await atune.tune(SCALE, target="c")
    assert servers() == []


PROGRAM = """
    import os, sys, time
    import atune
    from atune.workers.processes.server import parked

    atune.run(sys.argv[1], target="c")
    (server,) = parked._servers.values()
    child = os.fork()
    if child == 0:
        assert not parked._servers and server.lifeline == -1
        print("child", atune.run(sys.argv[1], target="c").measured, flush=True)
        sys.exit(0)  # runs the exit handlers, which must leave the parent's server alone
    os.waitpid(child, 0)
    assert server.returncode is None
    measured = atune.run(sys.argv[1], target="c").measured
    print("parent", measured, next(iter(parked._servers.values())).pid == server.pid, flush=True)
    if sys.argv[2] == "sleep":
        time.sleep(60)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_forked_children_do_without_and_nothing_outlives_the_program(tmp_path: Path, end: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    mark = new_mark()
    path = os.pathsep.join([str(WORKLOADS.parents[1]), os.environ.get("PYTHONPATH", "")])
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script), SCALE, "sleep" if end == "kill" else "exit"],
        env={**os.environ, MARK: mark, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    with program, program.stdout:
        assert program.stdout.readline() == "child 2\n"
        assert program.stdout.readline() == "parent 2 True\n"
        if end == "kill":
            program.kill()
        program.wait(10)
        wait_until(lambda: not marked(mark), 2, "the end of all processes")
    if end == "exit":
        assert program.returncode == 0
        assert not list(tmp_path.glob("atune-*/*-*/")), "folders are left over"
