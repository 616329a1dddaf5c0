"""A resident server with next to nothing imported, for tests, and a program that uses a session of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from processes import environment

import atune
from atune.local import resident_control
from atune.local.entry_points import PRELOAD
from atune.processes import resident_client
from atune.processes.pool import ForkServer
from atune.processes.resident_client import asked
from atune.processes.resident_place import Place
from atune.processes.server import ForkServerProcess

LIGHT = ("json", "pool_targets")


def prepare(patch: pytest.MonkeyPatch, folder: Path, preload: tuple[str, ...] = LIGHT) -> None:
    """Have a place of the test's own for a server, which imports `preload` alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    patch.setenv("XDG_RUNTIME_DIR", str(folder))
    patch.delenv("ATUNE_SERVER", raising=False)
    patch.setattr(resident_control, "PRELOAD", preload)
    patch.setattr(resident_client, "ANSWER_S", 20.0)  # however loaded the machine is


@contextmanager
def with_tilelang(folder: Path) -> Iterator[int]:
    """Run a server for a whole module, because its imports take seconds; yield its pid."""
    atune.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch, folder, PRELOAD)
        with running() as pid:
            yield pid
            atune.shutdown()


@contextmanager
def running(idle_s: float = 600.0) -> Iterator[int]:
    """Start a server; yield its pid, and stop it at the end."""
    pid = resident_control.start(idle_s)["pid"]
    try:
        yield pid
    finally:
        resident_control.stop()
        with suppress(ChildProcessError):  # one that a test killed
            os.waitpid(pid, 0)


def status() -> dict[str, Any]:
    found = resident_control.status(20.0)
    assert found is not None, "no server answers"
    return found


async def new_session(folder: Path, preload: tuple[str, ...] = LIGHT, **env: str) -> ForkServerProcess:
    """Return a session whose own variables, beside this program's, are `env`."""
    process = asked(Place(), preload, folder, lambda: None, env={**resident_control._env(), **env})
    await process.answered()
    return process


@asynccontextmanager
async def pool(folder: Path, **options: Any) -> AsyncGenerator[ForkServer, None]:
    async with ForkServer(process=await new_session(folder), **options) as server:
        yield server


async def client(folder: str) -> None:
    """Use a session with a worker that has a compiler under way; print their pids, and stay until killed."""
    async with pool(Path(folder)) as server, anyio.create_task_group() as tasks:
        worker = await server.spawn("test")
        tasks.start_soon(worker.call, "pool_targets:run_compiler", b"")
        print(json.dumps(server.pids()), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(client, sys.argv[1])
