"""The limits that processes run under: few open files, and core files of what crashes."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fork_servers import fork_server
from processes import environment

from atune.errors import MachineError, UsageError, WorkerLost
from atune.frontends.api.tuner import tune
from atune.journal.reader import replay
from atune.testing import FakeMachine

ROOT = Path(__file__).parents[2]


@contextmanager
def limit(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def ask(entry: str, folder: Path) -> Any:
    async def call() -> Any:
        async with fork_server(str(folder / "run")) as server:
            worker = await server.spawn("worker")
            return await worker.call(f"pool_targets:{entry}", b"", 20.0)

    return anyio.run(call)


@pytest.fixture(autouse=True)
def targets_importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.parametrize("wanted", [False, True])
def test_core_files_of_crashing_candidates_do_not_land_in_the_working_folder(
    wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if wanted:
        monkeypatch.setenv("ATUNE_CORE_FILES", "1")
    with limit(resource.RLIMIT_CORE, hard):
        (core, _), folder = json.loads(ask("limits", tmp_path))
        assert core == [hard if wanted else 0, hard] and folder == os.getcwd()
        if not wanted:
            with pytest.raises(WorkerLost, match="SIG"):
                ask("crash", tmp_path)
            assert not os.listdir()


def test_a_low_soft_limit_of_open_files_is_raised_in_workers(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with limit(resource.RLIMIT_NOFILE, 64):
        (_, files), _ = json.loads(ask("limits", tmp_path))
    assert files == [4096 if hard == resource.RLIM_INFINITY else min(hard, 4096), hard]


def test_64_open_files_are_enough(tmp_path: Path) -> None:
    """A real run on the CPU, in which neither the program nor its processes may have more."""
    journal = tmp_path / "j"
    arguments = f"tune {ROOT}/tests/workloads.py:SLICED --target c --workers 2 --budget 2 --no-store --quiet --rep 3"
    command = f"ulimit -n 64 && exec {sys.executable} -m atune {arguments} --journal {journal}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert replay(journal).measured == 2


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EMFILE, UsageError, r"may have \d+ files open, and needs more: raise that \(ulimit -n 1024\), or use"),
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
