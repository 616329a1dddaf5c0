"""The watch over compiles under way: what counts as their time, and what becomes of hopeless ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from atune.engine.compile_deadline import FLOOR_S, hopeless
from atune.engine.compile_watch import LOOK_S, CompileWatch
from atune.model.artifact import Artifact, Built, Failure, Lowered, StaticFacts
from atune.model.jobs import BuildJob, GroupFailed

pytestmark = pytest.mark.anyio
FLOOR = int(FLOOR_S / LOOK_S)


def group(size: int) -> list[Lowered]:
    return [Lowered(index, f"c{index}", "", (), StaticFacts(), 0.0, b"") for index in range(size)]


class Worker:
    """Compiles until it may end."""

    name = "compile-0"

    def __init__(self) -> None:
        self.compiling = 0
        self.may_end = anyio.Event()

    async def run(self, job: BuildJob) -> list[Built]:
        self.compiling = 1
        try:
            await self.may_end.wait()
            return [Artifact(lowered.index, "a.so", "main", (), "c") for lowered in job.group]
        finally:
            self.compiling = 0


class Watched:
    """A watch whose looks a test allows one by one, and the outcome of one compile."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s, self.worker = limit_s, Worker()
        self.watch = CompileWatch(lambda group: self.limit_s, self._sleep)
        self.outcome: Any = None
        self._may_look, self._looks = anyio.create_memory_object_stream[None](0)

    async def _sleep(self, seconds: float) -> None:
        assert seconds == LOOK_S
        await self._looks.receive()

    async def build(self, size: int) -> None:
        self.outcome = await self.watch.build(self.worker, group(size))  # type: ignore[arg-type]

    async def look(self, times: int) -> None:
        for _ in range(times):
            await self._may_look.send(None)  # received once the look before has ended
        await wait_all_tasks_blocked()


@asynccontextmanager
async def watched(size: int = 1, limit_s: float | None = FLOOR_S) -> AsyncGenerator[Watched, None]:
    one = Watched(limit_s)
    with one._may_look, one._looks:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.watch.serve)
            tasks.start_soon(one.build, size)
            await wait_all_tasks_blocked()
            yield one
            tasks.cancel_scope.cancel()


async def test_a_compile_past_its_limit_is_a_missed_deadline() -> None:
    async with watched() as one:
        await one.look(FLOOR)  # the first one sees it begin
        assert one.outcome is None
        await one.look(1)
        assert one.outcome == [Failure(0, "timeout", hopeless(FLOOR_S))] and one.worker.compiling == 0


async def test_a_group_past_its_limit_fails_as_a_whole() -> None:
    async with watched(size=3) as one:
        await one.look(FLOOR + 1)
        assert isinstance(one.outcome, GroupFailed)
        assert one.outcome.message == hopeless(FLOOR_S) and not one.outcome.doubt


async def test_the_limit_is_the_one_known_now() -> None:
    """None at first, as few others are compiled; it falls when many are."""
    async with watched(limit_s=None) as one:
        await one.look(5 * FLOOR)
        one.limit_s = 7 * FLOOR_S
        await one.look(FLOOR)
        assert one.outcome is None
        one.limit_s = 2 * FLOOR_S
        await one.look(1)
        assert one.outcome == [Failure(0, "timeout", hopeless(2 * FLOOR_S))]


async def test_a_compile_that_waits_for_memory_or_a_place_does_not_age() -> None:
    async with watched() as one:
        await one.look(FLOOR)
        one.worker.compiling = 0
        await one.look(3 * FLOOR)
        one.worker.compiling = 2
        await one.look(FLOOR)
        assert one.outcome is None
        await one.look(1)
        assert one.outcome == [Failure(0, "timeout", hopeless(FLOOR_S))]


async def test_a_compile_that_is_repeated_between_two_looks_begins_anew() -> None:
    async with watched() as one:
        await one.look(FLOOR)
        one.worker.compiling += 1
        await one.look(FLOOR)
        assert one.outcome is None
        await one.look(1)
        assert one.outcome is not None


async def test_a_compile_that_ends_in_time_answers_as_the_worker_does() -> None:
    async with watched(size=2) as one:
        await one.look(FLOOR)
        one.worker.may_end.set()
        await wait_all_tasks_blocked()
        assert [built.index for built in one.outcome] == [0, 1]


async def test_nothing_is_looked_at_while_nothing_compiles() -> None:
    async with watched() as one:
        one.worker.may_end.set()
        await one.look(1)  # the one that had begun
        with pytest.raises(anyio.WouldBlock):
            one._may_look.send_nowait(None)
        one.outcome = None
        one.worker.may_end = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.build, 1)
            await wait_all_tasks_blocked()
            await one.look(FLOOR + 1)
        assert one.outcome == [Failure(0, "timeout", hopeless(FLOOR_S))]
