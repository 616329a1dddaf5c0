"""Hopeless compiles end early: the deadline follows the others' compiles, between a floor and the user's maximum."""

from __future__ import annotations

import pytest
from event_streams import Stream
from fake_runs import finish, tuned

from atune.engine.compile_deadline import FACTOR, FLOOR_S, HOPELESS, LEAST, compile_deadline_s
from atune.engine.compile_work import HEAVY_REGISTERS
from atune.journal.events import ArtifactBuilt, BuildFailed, CandidateAliased, GroupSplit
from atune.journal.state import State
from atune.model.artifact import Lowered, StaticFacts
from atune.model.settings import Budget, CompileSettings
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


def test_what_a_resumed_run_compiles_once_more_counts_once() -> None:
    again = seen(*[(1, 4.0)] * (LEAST - 1), times=2)
    assert compile_deadline_s(seen(*[(1, 4.0)] * LEAST), [lowered(0)], 120.0) is None
    assert len(again.compile_s) == LEAST - 1 and compile_deadline_s(again, [lowered()], 120.0) is None


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


def test_one_slow_compile_among_many_leaves_the_deadline_as_it_was() -> None:
    assert compile_deadline_s(seen(*[(1, 4.0)] * 39, (1, 100.0)), [lowered()], 120.0) == FACTOR * 4.0


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
    assert (failed.index, failed.kind, failed.hopeless) == (index, "timeout", True)
    assert failed.message.startswith(f"{HOPELESS}15 s")  # five times the three seconds of the others
    assert 15 <= ended_s < 80 and machine.cancelled["build"] == 1 and run.result.measured == 19


@pytest.mark.parametrize("hangs", [3, 4])
async def test_the_others_of_a_hopeless_group_are_compiled_after_it(hangs: int) -> None:
    """Its limit is that of four; each half then has its own."""
    settings = CompileSettings(compile_timeout_s=1000, group_size=4)
    machine = FakeMachine(40, Script(hangs={hangs: "build"}), compile=settings)
    run = await tuned(machine, compile=settings)
    [split, half] = run.of(GroupSplit)
    assert hangs in half.indices and len(split.indices) == 4 and len(half.indices) == 2
    assert all(event.message.startswith(HOPELESS) for event in (split, half))
    [failed] = run.of(BuildFailed)
    assert failed.index == hangs and failed.hopeless and run.result.measured == 39


async def test_the_default_configuration_is_compiled_however_long_that_takes() -> None:
    """Everything is compared with it. Another one that takes as long is ended."""
    script = Script(compile_s=lambda config: 200.0 if config["x"] in (0, 1) else 0.5)
    run = await finish(FakeMachine(20, script, workers=3, compile=ALONE, default=0), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.index == 1 and failed.hopeless and 0 in run.measured()


async def test_the_users_deadline_counts_for_the_default_configuration() -> None:
    run = await finish(FakeMachine(20, Script(hangs={0: "build"}), compile=ALONE, default=0), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.message == "compiling ran past compile_timeout_s=1000" and not failed.hopeless


async def test_too_few_others_end_no_compile_before_the_users_deadline() -> None:
    run = await finish(FakeMachine(LEAST, Script(hangs={0: "build"}), compile=ALONE), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.index == 0 and failed.message == "compiling ran past compile_timeout_s=1000"


async def test_no_compile_is_hopeless_where_that_is_switched_off() -> None:
    settings = CompileSettings(compile_timeout_s=500, group_size=1, workers=1, end_hopeless=False)
    run = await finish(FakeMachine(20, Script(hangs={15: "build"}), compile=settings), compile=settings)
    [failed] = run.of(BuildFailed)
    assert failed.message == "compiling ran past compile_timeout_s=500" and not failed.hopeless


def slow(config: dict[str, int]) -> float:
    """Return what a candidate's compile takes: far longer than the others' where it is the fifteenth."""
    return 300.0 if config["x"] == 15 else 0.5


async def test_an_audit_measures_what_was_ended_as_hopeless() -> None:
    """It is the fastest, so that ending it was wrong; the audit's compile has the user's deadline."""
    settings = CompileSettings(compile_timeout_s=1000, group_size=1, workers=1)
    script = Script(compile_s=slow, latency_ms=lambda config: 0.5 if config["x"] == 15 else 1.0)
    run = await finish(FakeMachine(20, script, compile=settings), compile=settings, budget=Budget(audit=1.0))
    [ended] = run.of(BuildFailed)
    assert ended.index == 15 and ended.hopeless
    assert run.result.measured == 20 and run.result.best_index == 15
    assert run.result.audited is not None and run.result.audited.wrong == 1
    without = await finish(FakeMachine(20, script, compile=settings), compile=settings)
    assert without.result.measured == 19 and without.result.audited is not None and without.result.audited.tried == 0
