"""What is hopeless ends early: a compile far longer than the others', a kernel for CUDA on the CPU, and a run in which
the default and the first candidates all differ from the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream
from fake_runs import copying, finish, tuned

from atune.engine.compile_stage import FACTOR, FLOOR_S, LEAST_COMPILED, limit_s
from atune.engine.interfaces import CompileHints
from atune.errors import NoWinner
from atune.frontends.resume import resume
from atune.frontends.tuner import tune
from atune.journal.events import ArtifactBuilt, BuildFailed, GroupSplit
from atune.journal.reader import replay
from atune.journal.state import COMPILED_BEFORE, State
from atune.model.artifact import COMMON_FAILURES, Lowered, StaticFacts
from atune.model.candidate import BASELINE
from atune.model.settings import CompileSettings
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio


def lowered(index: int = 99) -> Lowered:
    return Lowered(index, f"c{index}", "", (), StaticFacts(), 0.0, b"")


def limit(seconds: float, *, libraries: int = LEAST_COMPILED, most_s: float = 120.0, reason: str = "") -> float | None:
    """Return the limit of one candidate after so many libraries of another one, in `seconds` each."""
    stream = Stream(total=1000)
    for index in range(libraries):
        stream.add(ArtifactBuilt, indices=(index,), file="x.so", seconds=seconds, reason=reason)
    return limit_s(State.of(stream.events), [lowered()], 1, most_s)


def test_nothing_is_hopeless_before_enough_was_compiled() -> None:
    assert limit(4.0, libraries=LEAST_COMPILED - 1) is None and limit(4.0, reason=COMPILED_BEFORE) is None
    assert limit(4.0) == FACTOR * 4.0


def test_the_limit_lies_between_the_floor_and_the_users_maximum() -> None:
    assert limit(0.1) == FLOOR_S and limit(30.0) is None and limit(0.1, most_s=5.0) is None


ALONE = CompileSettings(compile_timeout_s=1000, group_size=1, workers=1)


async def test_a_hopeless_compile_is_ended_long_before_the_users_deadline() -> None:
    machine = FakeMachine(40, Script(hangs={15: "build"}, library_s=2.5), compile=ALONE)
    run = await tuned(machine, compile=ALONE)
    [failed], ended_s = run.of(BuildFailed), run.when(BuildFailed)
    assert (failed.index, failed.kind) == (15, "hopeless")
    assert failed.message.startswith("compiling took more than 15 s")  # five times the others' three seconds
    assert 15 <= ended_s < 80 and run.result.measured == 39


def light(x: int) -> float:
    """Return the seconds of one of many compiles, which take 0.4 to 3.4 s."""
    return 0.4 + 0.3 * (7 * x % 11)


HEAVY, FASTEST = {3, 12}, 11
SPREADS: dict[str, tuple[int, Any, set[int]]] = {
    "two": (18, lambda x: 40.0 if x in HEAVY else light(x), HEAVY),
    "two, after two longer ones": (18, lambda x: 40.0 if x in HEAVY else 9.0 if x in (5, 6) else light(x), HEAVY),
    "one of few": (7, lambda x: 40.0 if x == 3 else light(x), set()),
    "all": (18, lambda x: 38.0 + x % 5, set()),
    "many, with the fastest": (18, lambda x: 20.0 if x % 2 else light(x), set()),
    "the prior's favourite, the fastest": (18, lambda x: 15.0 if x == FASTEST else 3.4, set()),
}
"""By which compiles are heavy: the candidates, the seconds of each compile, and those that end as hopeless."""


@pytest.mark.parametrize("spread", SPREADS)
async def test_a_run_waits_for_its_last_compiles_only_while_they_may_be_worth_it(spread: str) -> None:
    """They started before anything was known. Waiting for the two would take 40 s. No heavy winner is ended."""
    total, compile_s, hopeless = SPREADS[spread]
    script = Script(
        compile_s=lambda config: compile_s(config["x"]),
        library_s=0.1,
        facts=lambda config: copying(abs(config["x"] - FASTEST)),
        latency_ms=lambda config: 1.0 + abs(config["x"] - FASTEST),
    )
    run = await finish(FakeMachine(total, script, workers=16, target="sm_90a"))
    assert {failed.index for failed in run.of(BuildFailed)} == hopeless
    assert run.result.best_config == {"x": min(FASTEST, total - 1)}
    assert not hopeless or run.seconds[-1] < 30


async def test_while_nothing_is_measured_no_last_compile_is_ended() -> None:
    """The device's process starts slowly, and a heavy candidate is the fastest."""
    script = Script(
        compile_s=lambda config: 40.0 if config["x"] in HEAVY else light(config["x"]),
        start_s=60.0,
        latency_ms=lambda config: 1.0 + abs(config["x"] - 3),
    )
    run = await finish(FakeMachine(18, script, workers=16))
    assert not run.of(BuildFailed) and run.result.best_config == {"x": 3}


@pytest.mark.parametrize("hangs", [20, 23])
async def test_the_others_of_a_hopeless_group_are_compiled_after_it(hangs: int) -> None:
    """Its limit is that of four; each half then has its own."""
    settings = CompileSettings(compile_timeout_s=1000, group_size=4)
    machine = FakeMachine(80, Script(hangs={hangs: "build"}), compile=settings)
    run = await tuned(machine, compile=settings)
    [split, half] = run.of(GroupSplit)
    assert hangs in half.indices and len(split.indices) == 4 and len(half.indices) == 2
    assert all("far longer than other compiles" in event.message for event in (split, half))
    [failed] = run.of(BuildFailed)
    assert failed.index == hangs and failed.kind == "hopeless" and run.result.measured == 79


async def test_the_default_configuration_is_compiled_however_long_that_takes() -> None:
    """Everything is compared with it. Another one that takes as long is ended. The user's deadline counts, though."""
    script = Script(compile_s=lambda config: 200.0 if config["x"] in (0, 15) else 0.5)
    run = await finish(FakeMachine(20, script, workers=3, compile=ALONE, default=0), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.index == 15 and failed.kind == "hopeless" and 0 in run.measured()
    run = await finish(FakeMachine(20, Script(hangs={0: "build"}), compile=ALONE, default=0), compile=ALONE)
    [failed] = run.of(BuildFailed)
    assert failed.kind == "timeout"
    assert failed.message == "compiling ran past compile_timeout_s=1000 (--compile-timeout)"


# ---- nothing lowers

ALL: dict[int, Any] = dict.fromkeys(range(100), "lower")


class WithoutGpu(FakeMachine):
    """A machine on which ``auto`` means the CPU."""

    def hints(self, measuring: int) -> CompileHints:
        return CompileHints(alike=16)


async def test_a_kernel_that_the_cpu_cannot_have_ends_after_some_equal_failures(tmp_path: Path) -> None:
    with pytest.raises(NoWinner) as caught:
        await tune(machine=WithoutGpu(100, Script(fails=ALL)), journal=tmp_path / "j")
    result = caught.value.result
    assert 16 <= result.failed <= 16 + 2 and result.remaining == 100 - result.failed
    assert result.reason == "unlowered"
    assert "--compile-only --target sm_90a" in str(caught.value) and "atune resume" in str(caught.value)
    with pytest.raises(NoWinner) as caught:  # as `resume` does it, whose target is the header's
        await tune(machine=FakeMachine(100, Script(fails=ALL)), journal=tmp_path / "j")
    assert caught.value.result.failed == 100


@pytest.mark.parametrize("default", [0, 7, {"x": 1000}])
async def test_where_the_default_fails_too_two_equal_failures_are_enough(default: Any) -> None:
    with pytest.raises(NoWinner) as caught:
        await tune(machine=WithoutGpu(100, Script(fails={**ALL, BASELINE: "lower"}), default=default))
    result = caught.value.result
    assert result.reason == "unlowered" and 1 <= result.failed <= 4


async def test_a_run_in_which_one_lowered_tries_all() -> None:
    lowered = {index: kind for index, kind in ALL.items() if index}
    result = await tune(machine=WithoutGpu(100, Script(fails=lowered), default=0))
    assert (result.measured, result.failed, result.remaining) == (1, 99, 0)
    with pytest.raises(NoWinner) as caught:  # failures of another kind end nothing
        await tune(machine=WithoutGpu(100, Script(fails=dict.fromkeys(range(100), "compile"))))
    assert caught.value.result.failed == 100


# ---- all differ from the reference

TOTAL, DEVICES = 60, 2
MANY = range(BASELINE, TOTAL)


def differing(default: Any = 0, **fails: Any) -> FakeMachine:
    """Return a machine on which all give wrong outputs, but for what `fails` has: an index, or None for none."""
    wrong = dict.fromkeys(MANY, "mismatch") | {int(name[1:]): kind for name, kind in fails.items()}
    script = Script(fails={index: kind for index, kind in wrong.items() if kind})
    return FakeMachine(TOTAL, script, default=default, devices=DEVICES)


async def test_a_wrong_reference_ends_the_run_and_resuming_tries_the_others(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    with pytest.raises(NoWinner) as caught:
        await tune(machine=differing(), journal=journal)
    told = str(caught.value).splitlines()
    assert "look at the reference first" in told[2] and f"atune resume {journal}" in told[3], "before the example"
    for result in (caught.value.result, replay(journal)):
        assert result.reason == "mismatched" and COMMON_FAILURES <= result.failed < COMMON_FAILURES + DEVICES
    with pytest.raises(NoWinner) as caught:
        await resume(journal, machine=differing())
    assert (caught.value.result.failed, caught.value.result.reason) == (TOTAL, "exhausted")


@pytest.mark.parametrize(
    ("fake", "failed"),
    [
        (differing(default={"x": 1000}), COMMON_FAILURES),
        (differing(default=None), TOTAL),
        (differing(c0="compile"), TOTAL),
        (differing(c5="launch"), TOTAL),
        (differing(c5="compile", c6="lower"), COMMON_FAILURES + 2),
        (differing(c5=None), TOTAL - 1),
    ],
    ids=["of a baseline", "no default", "the default did not run", "one failed otherwise", "some never ran", "one ran"],
)
async def test_only_where_the_default_and_all_that_ran_differ(fake: FakeMachine, failed: int) -> None:
    try:
        result: Any = (await finish(fake)).result
    except NoWinner as error:
        result = error.result
    assert failed <= result.failed < (failed + DEVICES if failed < TOTAL - 1 else TOTAL + 1)
    assert (result.reason == "mismatched") == (failed < TOTAL - 1)
