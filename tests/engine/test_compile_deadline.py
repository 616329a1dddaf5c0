"""Hopeless compiles end early: the deadline follows the others' compiles, between a floor and the user's maximum."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from event_streams import Stream
from fake_runs import finish, tuned

from atune.engine.compile_cost import (
    FACTOR,
    FLOOR_S,
    HEAVY_REGISTERS,
    LEAST,
    STEP_S,
    compile_deadline_s,
    compiled_in_time,
)
from atune.engine.interfaces import CompileWorker
from atune.journal.events import ArtifactBuilt, BuildFailed, CandidateAliased, GroupSplit
from atune.journal.state import State
from atune.model.artifact import Lowered, StaticFacts
from atune.model.jobs import BuildJob
from atune.model.layouts import Layouts, LoopFacts
from atune.model.settings import CompileSettings
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio


def lowered(index: int = 99, accumulators: int | None = None) -> Lowered:
    return Lowered(index, f"c{index}", "", (), StaticFacts(accumulators=accumulators), 0.0, b"")


def seen(
    *libraries: tuple[int, float],
    reason: str = "",
    times: int = 1,
    default: int | None = None,
    same_as: int | None = None,
) -> State:
    """Fold libraries, each of so many candidates and built in so many seconds; all of them so many `times`.

    `default`: the default configuration, and `same_as` the candidate that has its code.
    """
    stream = Stream(total=1000, default=default)
    if default is not None and same_as is not None:
        stream.add(CandidateAliased, index=default, same_as=same_as)
    for _ in range(times):
        first = 0
        for size, seconds in libraries:
            indices = tuple(range(first, first + size))
            stream.add(ArtifactBuilt, indices=indices, file="x.so", seconds=seconds, reason=reason)
            first += size
    state = State()
    for event in stream.events:
        state.apply(event)
    return state


def test_nothing_is_hopeless_before_enough_was_compiled() -> None:
    assert compile_deadline_s(seen(*[(1, 4.0)] * (LEAST - 1)), [lowered()], 120.0) is None
    assert compile_deadline_s(seen(*[(1, 4.0)] * LEAST), [lowered()], 120.0) == FACTOR * 4.0


def test_libraries_from_the_store_tell_nothing() -> None:
    assert compile_deadline_s(seen(*[(1, 4.0)] * LEAST, reason="compiled before"), [lowered()], 120.0) is None


def test_the_deadline_lies_between_the_floor_and_the_users_maximum() -> None:
    assert compile_deadline_s(seen(*[(1, 0.1)] * LEAST), [lowered()], 120.0) == FLOOR_S
    assert compile_deadline_s(seen(*[(1, 30.0)] * LEAST), [lowered()], 120.0) is None
    assert compile_deadline_s(seen(*[(1, 0.1)] * LEAST), [lowered()], 5.0) is None


def test_a_group_has_the_time_of_all_its_members_and_heavy_ones_have_more() -> None:
    state = seen(*[(4, 16.0)] * LEAST)
    assert compile_deadline_s(state, [lowered(i) for i in range(900, 903)], 120.0) == 3 * FACTOR * 4.0
    heavy = compile_deadline_s(state, [lowered(accumulators=HEAVY_REGISTERS)], 1000.0)
    assert heavy is not None and heavy > 2 * FACTOR * 4.0


@pytest.mark.parametrize("same_as", [None, 900])
def test_the_default_configuration_has_the_users_deadline(same_as: int | None) -> None:
    """Also where another candidate is compiled for it, because that has its code."""
    state = seen(*[(1, 4.0)] * LEAST, default=900 if same_as is None else 901, same_as=same_as)
    assert compile_deadline_s(state, [lowered(900)], 120.0) is None
    assert compile_deadline_s(state, [lowered(902)], 120.0) == FACTOR * 4.0


def test_a_group_with_the_default_configuration_has_that_of_its_members() -> None:
    """It is split, and compiles the default again alone."""
    state = seen(*[(1, 4.0)] * LEAST, default=900)
    assert compile_deadline_s(state, [lowered(900), lowered(901)], 120.0) == 2 * FACTOR * 4.0


ALONE = CompileSettings(compile_timeout_s=1000, group_size=1, workers=1)


@pytest.mark.parametrize("index", [0, 15])
async def test_a_hopeless_compile_is_ended_long_before_the_users_deadline(index: int) -> None:
    """Also the first of all, about which the others tell while it runs."""
    machine = FakeMachine(20, Script(hangs={index: "build"}, library_s=2.5), compile=ALONE)
    run = await tuned(machine, compile=ALONE)
    [(ended_s, failed)] = [(s, e) for s, e in run.events if isinstance(e, BuildFailed)]
    assert (failed.index, failed.kind) == (index, "hopeless")
    assert failed.message.startswith(
        "compiling ran past 15 s, far longer"
    )  # five times the three seconds of the others
    assert 15 <= ended_s < 80 and machine.cancelled["build"] == 1 and run.result.measured == 19


async def test_a_kernel_with_long_loops_has_less_time() -> None:
    """Twice the others' seconds, in place of five times."""

    def facts(config: Any) -> StaticFacts:
        return StaticFacts(layouts=Layouts(loops=(LoopFacts((4, 4096), 5120 if config["x"] in (18, 19) else 64),)))

    script = Script(compile_s=lambda config: {18: 15.0, 19: 25.0}.get(config["x"], 7.5), library_s=0.0, facts=facts)
    run = await tuned(FakeMachine(20, script, compile=ALONE), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert (failed.index, failed.kind) == (19, "hopeless") and "past 15 s" in failed.message
    assert run.result.measured == 19


@pytest.mark.parametrize("hangs", [3, 4])
async def test_the_others_of_a_hopeless_group_are_compiled_after_it(hangs: int) -> None:
    """Its limit is that of four; each half then has its own."""
    settings = CompileSettings(compile_timeout_s=1000, group_size=4)
    machine = FakeMachine(40, Script(hangs={hangs: "build"}), compile=settings)
    run = await tuned(machine, compile=settings)
    [split, half] = run.of(GroupSplit)
    assert hangs in half.indices and len(split.indices) == 4 and len(half.indices) == 2
    assert all("far longer than the others' compiles" in event.message for event in (split, half))
    [failed] = run.of(BuildFailed)
    assert failed.index == hangs and failed.kind == "hopeless" and run.result.measured == 39


async def test_the_default_configuration_is_compiled_however_long_that_takes() -> None:
    """Everything is compared with it. Another one that takes as long is ended."""
    script = Script(compile_s=lambda config: 200.0 if config["x"] in (0, 1) else 0.5)
    run = await finish(FakeMachine(20, script, workers=3, compile=ALONE, default=0), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.index == 1 and failed.kind == "hopeless" and 0 in run.measured()


async def test_the_users_deadline_counts_for_the_default_configuration() -> None:
    run = await finish(FakeMachine(20, Script(hangs={0: "build"}), compile=ALONE, default=0), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.message == "compiling ran past compile_timeout_s=1000" and failed.kind == "timeout"


# ---- what counts as a compile's time


class Worker:
    """Compiles for ever."""

    name, compiling = "compile-0", True

    async def run(self, job: BuildJob) -> None:
        await anyio.sleep_forever()


class Compile:
    """A compile whose time a test lets pass step by step, and its outcome."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s, self.worker, self.outcome = limit_s, Worker(), cast(Any, None)
        self._may_pass, self._steps = anyio.create_memory_object_stream[None](0)

    async def _sleep(self, seconds: float) -> None:
        assert seconds == STEP_S
        await self._steps.receive()

    async def run(self) -> None:
        worker = cast(CompileWorker, self.worker)
        self.outcome = await compiled_in_time(worker, BuildJob((lowered(),)), lambda group: self.limit_s, self._sleep)

    async def steps(self, count: float) -> None:
        for _ in range(int(count)):
            await self._may_pass.send(None)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def compiling(limit_s: float | None = FLOOR_S) -> AsyncGenerator[Compile, None]:
    one = Compile(limit_s)
    with one._may_pass, one._steps:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run)
            await wait_all_tasks_blocked()
            yield one
            tasks.cancel_scope.cancel()


FLOOR = FLOOR_S / STEP_S


async def test_the_deadline_is_the_one_known_by_then() -> None:
    """None at first, as few others are compiled; it falls when many are."""
    async with compiling(limit_s=None) as one:
        await one.steps(5 * FLOOR)
        one.limit_s = 7 * FLOOR_S
        await one.steps(FLOOR)
        assert one.outcome is None
        one.limit_s = 2 * FLOOR_S
        await one.steps(1)
        assert [failure.kind for failure in one.outcome] == ["hopeless"]


async def test_waiting_for_memory_or_a_place_does_not_count() -> None:
    async with compiling() as one:
        await one.steps(FLOOR - 1)
        one.worker.compiling = False
        await one.steps(3 * FLOOR)
        one.worker.compiling = True
        await one.steps(FLOOR - 1)
        assert one.outcome is None
        await one.steps(1)
        assert one.outcome is not None
