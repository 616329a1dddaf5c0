"""Run fresh processes, and count the CPU seconds of all their descendants."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Finished:
    """A process that has ended, together with its descendants."""

    status: int
    wall_s: float
    cpu_s: float
    """User and system seconds of the process and of all its descendants."""
    started: float
    """`time.time()` just before it was started."""
    timed_out: bool
    output: str
    """Its stdout and stderr."""


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt descendants whose parents die, so that this process waits for them and their CPU time counts."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def run_counted(command: Sequence[str], *, env: dict[str, str], cwd: Path, timeout_s: float) -> Finished:
    """Run `command` to its end, and wait for all its descendants. Kill all of them after `timeout_s`.

    An interrupt kills them, too, because they are in their own process groups, which a terminal does not signal.
    """
    before = _children_cpu_s()
    log = cwd / "output.txt"
    with adopting_orphans(), log.open("wb") as output:
        started, clock = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        except BaseException:
            _end_all(grace_s=0.0)
            raise
        wall_s = time.perf_counter() - clock
        _end_all(grace_s=0.0 if timed_out else 10.0)
        process.wait()
    output_text = log.read_text(errors="replace")
    return Finished(process.returncode, wall_s, _children_cpu_s() - before, started, timed_out, output_text)


def _end_all(grace_s: float) -> None:
    """Wait for all children, including adopted ones, and kill the rest after `grace_s`."""
    deadline = time.monotonic() + grace_s
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                for child in _children():
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            time.sleep(0.01)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def empty_caches(prefix: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a scratch folder, and an environment in which atune's caches are empty and tilelang's cache is off."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        folder = Path(name)
        for part in ("cache", "tilelang", "tmp", "work"):
            (folder / part).mkdir(mode=0o700)
        root = str(Path(__file__).resolve().parents[1])
        env = {
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TILELANG_CACHE_DIR": str(folder / "tilelang"),
            "TILELANG_TMP_DIR": str(folder / "tmp"),
            "TILELANG_DISABLE_CACHE": "1",
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        }
        env.pop("ATUNE_CACHE_DIR", None)  # it would name a cache that is not empty
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python modules are compiled
        yield folder / "work", env
