"""Kernels that are lowered, and a compile service that is ready for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
from processes import wait_until

from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, Config, config_key, with_tuples
from atune.model.jobs import (
    BuildJob,
    FindJob,
    LowerJob,
)
from atune.model.settings import CompileSettings
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.local_machine import LocalMachine, Shared
from atune.workload.pickling import FileRef

SOFTMAX = FileRef(str(Path(__file__).parents[1] / "examples" / "softmax.py"), "WORKLOAD")


async def lowered_by(worker: LocalCompileWorker, *configs: Config) -> list[Lowered]:
    """Lower configurations; the candidates are numbered in this order."""
    answers = [await worker.run(LowerJob(Candidate(i, config_key(c), c))) for i, c in enumerate(configs)]
    assert all(isinstance(answer, Lowered) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Lowered)]


async def built_by(worker: LocalCompileWorker, *configs: Config) -> list[Artifact]:
    """Lower configurations, and build each by itself."""
    return artifacts([(await worker.run(BuildJob((one,))))[0] for one in await lowered_by(worker, *configs)])


@asynccontextmanager
async def lowered(
    n: int, settings: CompileSettings, target: str = "sm_90a", shared: Shared | None = None
) -> AsyncGenerator[tuple[LocalMachine, LocalCompileWorker, list[Lowered]]]:
    settings = msgspec.structs.replace(settings, store=False)
    machine = LocalMachine(SOFTMAX, target=target, devices=(), compile=settings)
    machine.shared = shared
    async with machine.open():
        spec = await machine.describe()
        await machine.discover()
        await machine.prepare(len(spec.configs))
        (worker,) = machine.compile_workers()
        answers = await lowered_by(worker, *map(with_tuples, spec.configs[:n]))
        for answer in answers:  # what the store does not have is to be compiled: then the service may start
            assert await worker.run(FindJob(answer)) is None
        await until(machine, lambda: not machine.service.warming, 60)
        yield machine, worker, answers


async def until(machine: LocalMachine, condition: Callable[[], bool], within_s: float) -> None:
    """Wait for `condition`, which follows from the compile service's state."""
    with anyio.fail_after(within_s):
        while not condition():
            changed = anyio.Event()
            machine.service.wake = changed.set
            await changed.wait()


def artifacts(built: list[object]) -> list[Artifact]:
    assert all(isinstance(one, Artifact) for one in built), built
    return [one for one in built if isinstance(one, Artifact)]


async def given_up(worker: LocalCompileWorker, group: list[Lowered], server: int) -> None:
    """Cancel a build of `group` while a child of `server` compiles it; the child ends with the one who asked."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run, BuildJob(tuple(group)))
        with anyio.fail_after(10):
            while not children(server):
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    wait_until(lambda: not children(server), 0.5, "the end of the compile")


def children(pid: int) -> list[int]:
    """Return the processes that `pid` has forked and that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(parent) == pid and state != "Z":
                    found.append(int(entry.name))
    return found
