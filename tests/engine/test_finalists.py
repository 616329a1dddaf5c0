"""Leaders that shared a compile get one of their own ahead of the final, by workers that have nothing else to do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import ALONE, SLOW, SLOW_S, last_wins, slow_last, tuned

from atune.api.resume import resume
from atune.api.tuner import Tuner, tune
from atune.engine import finalists
from atune.engine.finalists import share
from atune.engine.interfaces import CompileHints
from atune.engine.scheduler import CompileState, Counts, Queues
from atune.journal.events import (
    ArtifactBuilt,
    CandidateLowered,
    CandidateMeasured,
    Event,
    FinalOrdered,
    GroupSplit,
    Warned,
)
from atune.journal.state import State
from atune.model.artifact import Lowered, StaticFacts
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.testing import FakeClock, FakeMachine, Script

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("workers", [2, 6])
async def test_leaders_are_compiled_while_a_worker_is_still_busy_and_the_final_compiles_none(workers: int) -> None:
    machine = FakeMachine(8, slow_last(exact_s=3.0), workers=workers)
    run = await tuned(machine)
    assert sorted(i for part in machine.build_exact for i in part) == [0, 1, 2]
    assert all(seconds < SLOW_S for seconds, _ in run.nvcc())
    assert run.when(FinalOrdered) - run.when(CandidateMeasured) < machine.script.exact_s  # checks and rounds alone
    assert run.result.artifact is not None and run.result.artifact.compiler == "nvcc"
    assert machine.measured["fake-0"][-3:] == [0, 1, 2]  # checked again, in the final
    assert sorted(machine.lowered) == list(range(8))  # and none is lowered again
    assert max(len(part) for part in machine.build_exact) == (2 if workers == 2 else 1)


async def test_leaders_are_not_lowered_again_however_many_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "KEPT", 4)
    machine = FakeMachine(40, slow_last())
    await tuned(machine)
    assert sorted(i for part in machine.build_exact for i in part) == [0, 1, 2]
    assert sorted(machine.lowered) == list(range(40))


async def test_what_is_built_ahead_is_no_candidates_first_library() -> None:
    run, state = await tuned(FakeMachine(8, slow_last())), State()
    for _, event in run.events:
        state.apply(event)
        measured = state.counts["measured"]
        assert measured <= state.built <= 8
    assert state.built == run.result.measured == 8


async def test_an_overtaken_leader_is_not_in_the_final_and_its_follower_is_compiled() -> None:
    machine = FakeMachine(8, slow_last(latency_ms=last_wins))
    run = await tuned(machine)
    assert sorted(i for part in machine.build_exact for i in part) == [0, 1, 2, SLOW]
    assert machine.build_exact[-1] == (SLOW,)
    [final] = run.of(FinalOrdered)
    assert {e.index for e in final.entries} == {SLOW, 0, 1, 6}  # three leaders and the slowest
    assert run.result.best_config == {"x": SLOW} and not run.result.warnings
    assert run.result.artifact is not None and run.result.artifact.compiler == "nvcc"


async def test_the_final_does_not_wait_for_a_leader_that_was_overtaken() -> None:
    machine = FakeMachine(8, slow_last(latency_ms=last_wins, exact_s=10 * SLOW_S))
    run = await tuned(machine, n_final=1)
    assert machine.build_exact == [(0,), (SLOW,)] and machine.cancelled["nvcc"] == 1
    assert [e.indices for _, e in run.nvcc()] == [(SLOW,)] and not run.result.warnings


async def test_the_final_waits_for_a_finalist_that_is_being_compiled() -> None:
    machine = FakeMachine(8, slow_last(exact_s=2 * SLOW_S))
    run = await tuned(machine)
    assert sorted(i for part in machine.build_exact for i in part) == [0, 1, 2] and not machine.cancelled["nvcc"]
    assert SLOW_S < run.nvcc()[-1][0] < 4 * SLOW_S


@pytest.mark.parametrize("workers", [1, 2, 6])
async def test_one_that_nvcc_cannot_compile_is_told_once(workers: int) -> None:
    run = await tuned(FakeMachine(8, slow_last(exact_fails=(1,)), workers=workers))
    [warning] = run.of(Warned)
    assert "candidate 1 may differ, in the final," in warning.message and "nvcc is scripted to fail" in warning.message
    assert sorted(i for _, e in run.nvcc() for i in e.indices) == [0, 2]


async def test_one_that_nvcc_cannot_compile_and_that_was_overtaken_is_not_told() -> None:
    run = await tuned(FakeMachine(8, slow_last(latency_ms=last_wins, exact_fails=(2,))))
    assert not run.of(Warned)


async def test_a_worker_lost_ahead_of_the_final_costs_nothing() -> None:
    """What it was compiling is compiled again, one by one, in case one of them killed it."""
    machine = FakeMachine(8, slow_last(exact_losses=1))
    run = await tuned(machine)
    assert not run.of(Warned) and sorted(i for _, e in run.nvcc() for i in e.indices) == [0, 1, 2]
    assert sorted(e.index for e in run.of(CandidateMeasured)) == list(range(8))
    assert all(seconds < SLOW_S for seconds, _ in run.nvcc())


async def test_when_every_worker_is_lost_the_finalists_are_shared() -> None:
    run = await tuned(FakeMachine(8, slow_last(exact_losses=99)))
    assert len(run.of(Warned)) == 3 and run.result.best_config == {"x": 0}
    assert run.result.artifact is not None and run.result.artifact.shared


@pytest.mark.parametrize(
    ("script", "n_final"),
    [({"shared": False}, 3), ({}, 0)],
)
async def test_nothing_is_compiled_ahead_of_a_final_that_has_no_use_for_it(
    script: dict[str, Any], n_final: int
) -> None:
    machine = FakeMachine(8, slow_last(**script))
    await tuned(machine, n_final)
    assert not machine.build_exact


async def test_a_single_candidate_is_not_compiled_again() -> None:
    """Nobody shares its compile."""
    machine = FakeMachine(1, slow_last(shared=False))
    await tuned(machine)
    assert not machine.build_exact


async def test_the_only_one_that_works_is_compiled_exactly_without_a_final() -> None:
    script = slow_last(fails=dict.fromkeys(range(1, 8), "mismatch"))
    machine = FakeMachine(8, script)
    run = await tuned(machine)
    assert machine.build_exact == [(0,)] and not machine.finals
    assert run.result.artifact is not None and run.result.artifact.exact


async def test_without_the_pipeline_nothing_compiles_while_devices_measure() -> None:
    machine = FakeMachine(8, slow_last())
    run = await tuned(machine, pipeline=False)
    assert run.nvcc()[0][0] > run.when(CandidateMeasured)
    assert sorted(i for part in machine.build_exact for i in part) == [0, 1, 2]


async def test_after_stop_nothing_is_begun_ahead_of_the_final() -> None:
    """What is under way ends, then comes the final, for which the leaders so far are compiled."""
    machine = FakeMachine(8, slow_last(compile_s=lambda c: SLOW_S if c["x"] == 0 else 0.5), clock=FakeClock())
    began: list[float] = []

    def listen(event: Event) -> None:
        assert machine.clock is not None
        if isinstance(event, CandidateMeasured) and event.index == 3:
            tuner.stop()
        elif isinstance(event, ArtifactBuilt) and event.compiler == "nvcc":
            began.append(machine.clock.now - machine.script.exact_s)

    benchmark = BenchmarkSettings(n_final=3)
    async with Tuner(machine=machine, compile=ALONE, benchmark=benchmark, on_event=listen) as tuner:
        result = await tuner.result()
    assert [sorted(part) for part in machine.build_exact] == [[1, 2], [3]] and min(began) >= SLOW_S
    assert result.best_config == {"x": 1} and result.artifact is not None and result.artifact.compiler == "nvcc"


async def test_nothing_is_compiled_ahead_while_candidates_are_still_coming() -> None:
    """Lowering is slow, and devices measure what there is at once: workers take nothing but the candidates."""
    machine = FakeMachine(30, Script(latency_ms=lambda c: 1.0 + c["x"], shared=True, lower_s=5.0), workers=3)
    run = await tuned(machine, compile=CompileSettings())
    assert run.nvcc()[0][0] - machine.script.exact_s >= run.when(CandidateLowered)
    assert run.result.measured == 30


async def test_parts_of_a_group_that_failed_are_built_while_others_compile_ahead() -> None:
    """The group fails late, while the other worker has leaders; its parts are built and measured all the same."""
    machine = FakeMachine(8, slow_last(fails={6: "compile"}, exact_s=SLOW_S), workers=2)
    run = await tuned(machine, compile=CompileSettings(group_size=2))
    assert run.of(GroupSplit) and run.result.failed == 1 and run.result.measured == 7
    ahead, split = run.nvcc()[0][0], run.when(GroupSplit)
    assert ahead - SLOW_S < split < ahead < run.when(CandidateMeasured) and not run.of(Warned)


@pytest.mark.parametrize("workers", [1, 2, 5])
async def test_cut_before_its_final_a_resumed_run_has_nvccs_finalists(tmp_path: Path, workers: int) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    options: dict[str, Any] = {"compile": ALONE, "benchmark": BenchmarkSettings(n_final=3)}

    def fake() -> FakeMachine:
        return FakeMachine(8, slow_last(), workers=workers)

    await tune(machine=fake(), journal=whole, **options)
    lines = whole.read_bytes().splitlines(keepends=True)
    end = next(k for k, line in enumerate(lines) if b'"final_ordered"' in line)
    for cut in range(1, end + 1, 3):
        part.write_bytes(b"".join(lines[:cut]))
        result = await resume(part, machine=fake())
        assert result.measured == 8 and result.best_config == {"x": 0} and not result.warnings
        assert result.artifact is not None and result.artifact.compiler == "nvcc"


async def test_cancelling_kills_what_compiles_ahead() -> None:
    machine = FakeMachine(8, slow_last(exact_s=SLOW_S / 4))
    async with Tuner(machine=machine, compile=ALONE, benchmark=BenchmarkSettings(n_final=3)) as tuner:
        async for event in tuner.events():
            if isinstance(event, CandidateMeasured) and event.index == 6:
                break
    assert machine.running == 0 and machine.closed == 1 and machine.cancelled["nvcc"] == 1


@pytest.mark.parametrize("seed", range(6))
async def test_whoever_leads_the_finalists_are_nvccs_and_all_else_is_as_without(seed: int) -> None:
    rng = random.Random(seed)
    order, slow = rng.sample(range(20), 20), {rng.randrange(20) for _ in range(3)}

    def latency(config: dict[str, Any]) -> float:
        return 1.0 + order[config["x"]] / 10

    def seconds(config: dict[str, Any]) -> float:
        return 20.0 if config["x"] in slow else 0.5

    workers, devices = rng.choice((1, 3, 6)), rng.choice((1, 2))
    script = Script(latency_ms=latency, compile_s=seconds, shared=True, fails={rng.randrange(20): "compile"})
    machine = FakeMachine(20, script, workers=workers, devices=devices)
    run = await tuned(machine, 4, compile=CompileSettings(end_hopeless=False))
    ok = sorted((latency({"x": e.index}), e.index) for e in run.of(CandidateMeasured))
    assert run.result.best_config == {"x": ok[0][1]} and len(ok) == 19 and not run.of(Warned)
    again = [i for _, e in run.nvcc() for i in e.indices]
    assert {index for _, index in ok[:4]} <= set(again) and len(set(again)) == len(again)


def test_workers_share_the_finalists() -> None:
    assert share([], (), 1, 5) == share([], (), 9, 5) == ()
    assert share([4, 2, 7], (), 1, 3) == (4, 2, 7)
    assert share([4, 2, 7], (), 8, 3) == (4,)
    assert share([4, 2, 7, 1, 0], (), 2, 5) == (4, 2, 7)
    assert share([1, 0], (), 2, 5) == (1, 0)  # what the other worker left


@pytest.mark.parametrize("workers", [1, 8])
def test_those_that_failed_come_last_and_alone(workers: int) -> None:
    assert share([4, 2], {4}, workers, 2) == (2,)
    assert share([4, 2], {4, 2}, workers, 2) == (4,)


def lowered(index: int) -> Lowered:
    return Lowered(index, f"c{index}", "", (), StaticFacts(), 0.0, b"")


def spare(change: Callable[[Queues], None] = lambda queues: None, **counts: Any) -> bool:
    setup = {name: counts.pop(name) for name in ("workers", "proposing", "pipeline") if name in counts}
    queues = Queues(waiting=counts.pop("waiting", 0))
    hints = CompileHints(resting=counts.pop("resting", 0))
    change(queues)
    setup = {"workers": 4, "devices": 1, "total": 10, "proposing": False, **setup}
    return CompileState(**setup, queues=queues, counts=Counts(**counts), hints=hints).spare


def test_a_worker_is_spare_once_nothing_is_left_to_begin() -> None:
    assert spare() and spare(building=3, busy=3) and spare(busy=2, ahead=1)
    assert not spare(proposing=True) and not spare(waiting=1) and not spare(lowering=1)
    assert not spare(lambda queues: queues.ready.append(lowered(0)))
    assert not spare(lambda queues: queues.deferred.append(lowered(0)))
    assert not spare(lambda queues: queues.retry.append((lowered(0),)))
    assert not spare(pipeline=False)


def test_a_worker_is_not_spare_while_devices_need_its_core_and_real_work_never_waits_for_it() -> None:
    assert not spare(busy=3, resting=1) and not spare(busy=1, ahead=2, resting=1) and not spare(workers=1, resting=1)
    queues = Queues(retry=[(lowered(0),)])
    state = CompileState(
        2, 1, 10, proposing=False, queues=queues, counts=Counts(ahead=1), hints=CompileHints(resting=1)
    )
    assert state.next_job() is not None
