"""The limits that processes run under: few open files, core files of what crashes, memory, and whose folders."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fork_servers import fork_server

from atune.errors import MachineError, UsageError, WorkerLost
from atune.frontends.tuner import tune
from atune.model.device import Target
from atune.model.folders import run_folder
from atune.model.settings import CompileSettings
from atune.testing import FakeMachine
from atune.workers import local_machine
from atune.workers.messages import Discovery
from atune.workers.resources import WORKER_BYTES, usable_memory_bytes
from atune.workload.pickling import FileRef


@contextmanager
def limit(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def ask(entry: str, run_dir: str) -> Any:
    async def call() -> Any:
        async with fork_server(run_dir) as server:
            worker = await server.spawn("worker")
            return await worker.call(f"pool_targets:{entry}", b"", 20.0)

    return anyio.run(call)


def test_core_files_of_crashing_candidates_do_not_land_in_the_working_folder(
    run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    with limit(resource.RLIMIT_CORE, hard):
        (core, _), folder = json.loads(ask("limits", run_dir))
        assert core == [0, hard] and folder == os.getcwd()
        with pytest.raises(WorkerLost, match="SIG"):
            ask("crash", run_dir)
        assert not os.listdir()


def test_a_low_soft_limit_of_open_files_is_raised_in_workers(run_dir: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with limit(resource.RLIMIT_NOFILE, 64):
        (_, files), _ = json.loads(ask("limits", run_dir))
    assert files == [4096 if hard == resource.RLIM_INFINITY else min(hard, 4096), hard]


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EMFILE, UsageError, r"may open \d+ files and needs more: raise the limit \(ulimit -n 1024\), or use"),
        (errno.ENFILE, UsageError, "the machine has too many files open"),
        (errno.ENOSPC, MachineError, "make room there, or set TMPDIR"),
    ],
)
def test_too_few_open_files_say_what_is_needed(number: int, kind: type[Exception], message: str) -> None:
    """A full disk does, too."""

    class Short(FakeMachine):
        @asynccontextmanager
        async def open(self, *_: object) -> Any:
            raise OSError(number, os.strerror(number))
            yield

    with pytest.raises(kind, match=message) as caught:
        anyio.run(lambda: tune(machine=Short(2)))
    assert isinstance(caught.value.__cause__, OSError)


# ---- memory: the machine's, and the cgroups' around this process


GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 64 GiB available and a process in the cgroup /jobs/mine, none limited."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/jobs/mine\n")
    (tmp_path / "cgroup" / "jobs" / "mine").mkdir(parents=True)
    return tmp_path


def limit_memory(machine: Path, group: str, maximum: int | str, current: int, inactive_file: int = 0) -> None:
    folder = machine / "cgroup" / group
    (folder / "memory.max").write_text(f"{maximum}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\n")


def usable(machine: Path) -> int | None:
    return usable_memory_bytes(machine / "proc", machine / "cgroup")


def test_the_tightest_cgroup_around_the_process_counts(machine: Path) -> None:
    """Page cache that can be dropped is free. Without a limit the whole machine's memory counts."""
    assert usable(machine) == 64 * GIB
    limit_memory(machine, "jobs/mine", "max", 7 * GIB)
    assert usable(machine) == 64 * GIB
    limit_memory(machine, "jobs/mine", 32 * GIB, 2 * GIB)
    assert usable(machine) == 30 * GIB
    limit_memory(machine, "jobs", 8 * GIB, 5 * GIB)
    assert usable(machine) == 3 * GIB
    limit_memory(machine, "jobs", 8 * GIB, 8 * GIB, inactive_file=6 * GIB)
    assert usable(machine) == 6 * GIB


def test_workers_are_as_many_as_fit_unless_a_number_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_machine, "usable_cores", lambda: list(range(32)))
    monkeypatch.setattr(local_machine, "usable_memory_bytes", lambda: 3 * WORKER_BYTES)
    warnings = list[str]()
    for workers, wanted in ((None, 3), (6, 6)):
        settings = CompileSettings(workers=workers)
        machine = local_machine.LocalMachine(FileRef("x.py", "X"), target="sm_90a", devices=(), compile=settings)
        machine.workers.warn = warnings.append
        machine.discovery = Discovery(target=Target("cuda", "sm_90a"), devices=())
        assert len(machine.compile_workers()) == wanted
    [warning] = warnings
    assert warning.startswith(
        "3 compile workers on 32 cores, because 3.0 GiB of memory are free, and each worker gets 1 GiB"
    )


# ---- folders


def test_a_link_in_place_of_the_run_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lead the sweep of old runs to somebody's files."""
    home, tmp = tmp_path / "home", tmp_path / "tmp"
    (home / "run-mine").mkdir(parents=True)
    home.chmod(0o700)
    tmp.mkdir()
    (tmp / f"atune-{os.getuid()}").symlink_to(home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp))
    with pytest.raises(UsageError, match="a folder that only you can use"), run_folder():
        pass
    assert (home / "run-mine").exists()
