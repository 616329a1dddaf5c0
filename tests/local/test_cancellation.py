"""Cancellation, Ctrl-C, SIGTERM and SIGKILL leave no process behind, wherever they hit.

Every run is a program of its own with a mark in its environment, which all its descendants inherit.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import MARK, groups, marked, new_mark, wait_until

from atune.journal.events import RunInterrupted
from atune.journal.reader import read

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "tests" / "workloads.py"
END_S = 1.0
"""All work has ended within this, after a cancellation or a signal."""
ORPHAN_S = 2.0
"""Workers have left within this, after their parent was killed."""


class Run:
    """A program under test, and everything that it started."""

    def __init__(self, tmp_path: Path) -> None:
        self.mark = new_mark()
        slow = tmp_path / "slow-gxx"
        slow.mkdir()
        # The real compiler under a wrapper, as nvcc and ccache are: it waits for its input until it is killed.
        (slow / "g++").write_text('#!/bin/sh\n/usr/bin/env PATH=/usr/bin:/bin g++ -x c++ -c -o /dev/null - < "$FIFO"\n')
        (slow / "g++").chmod(0o755)
        os.mkfifo(tmp_path / "fifo")
        self.env = {
            **os.environ,
            MARK: self.mark,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path),
            "ATUNE_TEST_SLOW_GXX": str(slow),
            "FIFO": str(tmp_path / "fifo"),
        }
        self.tmp_path = tmp_path
        self.keep_open = os.open(tmp_path / "fifo", os.O_RDWR)
        self.journal = tmp_path / "run.jsonl"
        self.program: subprocess.Popen[bytes] | None = None

    def command_line(self, name: str) -> subprocess.Popen[bytes]:
        where = f"{WORKLOADS}:{name}"
        return self.start("-m", "atune", "tune", where, "--target", "c", "--quiet", "--journal", str(self.journal))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.program = subprocess.Popen(
            [sys.executable, *arguments], env=self.env, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return self.program

    def others(self) -> dict[int, str]:
        assert self.program is not None
        return {pid: command for pid, command in marked(self.mark).items() if pid != self.program.pid}

    def close(self) -> None:
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        if self.program is not None:
            self.program.communicate(timeout=5)
        os.close(self.keep_open)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.close()


def preloading(run: Run) -> bool:
    """The fork server runs and has no worker yet."""
    return len(run.others()) == 1


def gil_held(run: Run) -> bool:
    """A worker has entered the kernel, which sleeps in C with the GIL held: no Python thread of it can run."""
    for pid in run.others():
        try:
            if "hrtimer_nanosleep" in Path(f"/proc/{pid}/wchan").read_text():
                return True
        except OSError:
            continue
    return False


def compiler_alive(run: Run) -> bool:
    return any("cc1plus" in command for command in run.others().values())


PHASES: dict[str, Callable[[Run], bool]] = {"SCALE": preloading, "GIL": gil_held, "SLOW": compiler_alive}
"""What a run has reached when it is ended, by its workload."""


@pytest.mark.usefixtures("with_a_terminal")
@pytest.mark.parametrize("name", PHASES)
def test_signal_at_the_command_line_ends_everything(run: Run, name: str) -> None:
    """All signals take the same way: in each phase comes one."""
    reached, program = PHASES[name], run.command_line(name)
    n_groups = 1 if reached is preloading else 2  # the server's, and a worker's: the server may sleep, too
    wait_until(lambda: reached(run) and len(groups(run.others())) >= n_groups, 100, "the phase")
    if reached is compiler_alive:
        wait_until(lambda: any(run.tmp_path.glob("atune-*/run-*/**/cc*.s")), 10, "the compiler's file")
    before = run.others()
    sent = time.monotonic()
    program.send_signal(signal.SIGTERM if name == "GIL" else signal.SIGINT)
    wait_until(lambda: not run.others(), END_S, f"the end of {before}")
    _, stderr = program.communicate(timeout=5)
    took = time.monotonic() - sent
    assert program.returncode == 130, stderr.decode()
    assert took < END_S + 0.5  # the interpreter's own shutdown is not ours
    assert b"Traceback" not in stderr
    if run.journal.exists():  # no lock is left on it either
        with run.journal.open() as journal:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if reached is not preloading:
        assert isinstance(read(run.journal)[-1], RunInterrupted)
    assert not [*run.tmp_path.rglob("cc*.*"), *ROOT.glob("cc*.*")], "a compiler's file is left over"
    assert not list(run.tmp_path.glob("atune-*/run-*")), "the run's folder is left over"


@pytest.mark.parametrize("name", PHASES)
def test_sigkill_of_the_parent_leaves_nothing(run: Run, name: str) -> None:
    program = run.command_line(name)
    wait_until(lambda: PHASES[name](run), 100, "the phase")
    before = run.others()
    assert before
    program.kill()
    wait_until(lambda: not run.others(), ORPHAN_S, f"the end of {before}")


def test_a_daemon_that_a_kernel_function_starts_is_gone_when_the_run_has_ended(run: Run) -> None:
    program = run.command_line("DAEMON")
    seen = wait_until(lambda: "sleep 601" in run.others().values() or program.poll() is not None, 100, "the daemon")
    assert program.poll() is None, f"the run ended within {seen:.1f} s, without a daemon"
    _, stderr = program.communicate(timeout=100)
    assert program.returncode == 0, stderr.decode()
    assert not run.others()


CANCEL = """
    import sys, time
    import anyio
    import atune

    async def main():
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: atune.tune(sys.argv[1], target="c", journal=sys.argv[2]))
                await anyio.to_thread.run_sync(sys.stdin.readline)
                started = time.monotonic()
                scope.cancel()
        print(time.monotonic() - started, flush=True)
        await anyio.sleep(30)

    anyio.run(main, backend=sys.argv[3])
"""


@pytest.mark.parametrize("name", PHASES)
def test_cancelling_the_scope_ends_everything_and_the_program_goes_on(run: Run, name: str) -> None:
    script = run.tmp_path / "cancel.py"
    script.write_text(textwrap.dedent(CANCEL))
    program = run.start(str(script), f"{WORKLOADS}:{name}", str(run.journal), "trio" if name == "SLOW" else "asyncio")
    assert program.stdin is not None and program.stdout is not None
    wait_until(lambda: PHASES[name](run), 100, "the phase")
    before = run.others()
    program.stdin.write(b"\n")
    program.stdin.flush()
    took = float(program.stdout.readline())
    assert took < END_S
    wait_until(lambda: not run.others(), 0.2, f"the end of {before}")
    assert program.poll() is None
