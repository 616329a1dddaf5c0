"""The winner is proven to be tilelang's own code: the leader during the final, another winner after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream
from fake_runs import SLOW_S, slow_last, tuned

from atune.errors import NoWinner, WorkerError
from atune.frontends.api.resume import resume
from atune.frontends.api.tuner import Tuner, tune
from atune.journal.events import (
    BenchmarkFailed,
    CandidateMeasured,
    DeviceLost,
    DeviceReady,
    Event,
    FinalOrdered,
    FinalStarted,
    RunFinished,
    Warned,
    WinnerProven,
)
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.journal.result import Result
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.reporting.summary import summary
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio
N = 8


def accelerated(**script: Any) -> Script:
    """Return a script in which candidate 0 is the fastest, the last one compiles for long, and proofs are needed."""
    return slow_last(**{"cicc": True, **script})


@pytest.mark.parametrize("workers", [1, 2, 6])
async def test_the_leader_alone_is_proven_while_the_last_candidate_compiles_or_during_the_final(workers: int) -> None:
    """A single worker is free only when all is compiled."""
    machine = FakeMachine(N, accelerated(prove_s=3.0), workers=workers)
    run = await tuned(machine)
    assert run.proven() == (0, "compared", 3.0) and machine.proved == [0] and not run.result.warnings
    if workers > 1:
        assert run.when(WinnerProven) == run.when(FinalOrdered)
    else:
        assert run.when(FinalStarted) < run.when(WinnerProven) <= run.when(FinalStarted) + 3.0


async def test_a_new_leader_cancels_the_proof_of_the_one_before() -> None:
    """The last candidate, which compiles for long, is the fastest."""
    machine = FakeMachine(
        N, accelerated(latency_ms=lambda c: 0.5 if c["x"] == N - 1 else 1.0 + c["x"], prove_s=2 * SLOW_S)
    )
    run = await tuned(machine)
    assert len(machine.proved) == 2 and machine.cancelled["prove"] == 1
    assert run.proven() == (N - 1, "compared", 2 * SLOW_S) and run.result.best_index == N - 1


async def test_a_leader_that_loses_the_final_is_proven_no_further_and_the_winner_is() -> None:
    takes_s = 2 * SLOW_S
    machine = FakeMachine(N, accelerated(final_ms=lambda c: 0.5 if c["x"] == 1 else 1.0 + c["x"], prove_s=takes_s))
    run = await tuned(machine)
    assert machine.proved == [0, 1] and machine.cancelled["prove"] == 1
    assert run.proven() == (1, "compared", takes_s) and run.when(WinnerProven) == run.when(FinalOrdered) + takes_s


@pytest.mark.parametrize("workers", [1, 2, 6])
@pytest.mark.parametrize("n_final", [0, 1, 3])
async def test_a_difference_is_warned_of_and_the_plain_library_is_timed_and_wins(workers: int, n_final: int) -> None:
    script = accelerated(differs={0}, plain_ms=lambda c: 1.25 + c["x"], prove_s=3.0)
    machine = FakeMachine(N, script, workers=workers)
    run = await tuned(machine, n_final)
    assert run.proven() == (0, "replaced", 3.0) and machine.proved.count(0) == 1
    [warning] = run.of(Warned)
    assert "candidate 0 differs from what tilelang compiles (the device code)" in warning.message
    assert "The plain library takes its place" in warning.message
    assert [e.timing.latency_ms for e in run.of(CandidateMeasured) if e.index == 0] == [1.0, 1.25]
    assert len(run.of(FinalOrdered)) == (2 if n_final else 0)
    assert run.result.best_config == {"x": 0} and run.result.latency_ms == 1.25 and run.result.measured == N
    assert run.result.artifact is not None and run.result.artifact.plain


class Resting(FakeMachine):
    """A machine whose devices end with the final."""

    async def rest(self) -> None:
        assert self.clock is not None
        self.rested = [*getattr(self, "rested", []), self.clock.now]
        for device in self.device_workers():
            device.alive = False


@pytest.mark.parametrize("n_final", [0, 3])
async def test_devices_rest_before_the_proof_and_start_again_for_a_plain_library(n_final: int) -> None:
    machine = Resting(N, accelerated(differs={0}, plain_ms=lambda c: 1.25 + c["x"], prove_s=2 * SLOW_S))
    run = await tuned(machine, n_final)
    assert run.proven() == (0, "replaced", 2 * SLOW_S) and run.result.latency_ms == 1.25
    proven = next(seconds for seconds, event in run.events if isinstance(event, Warned))
    assert machine.rested[0] < proven <= machine.rested[-1] and (not n_final or machine.rested[0] > SLOW_S)
    assert len(run.of(DeviceReady)) == 2 and not run.of(DeviceLost)


@pytest.mark.parametrize("n_final", [0, 3])
async def test_a_plain_library_that_loses_leaves_the_next_one_to_be_proven(n_final: int) -> None:
    machine = FakeMachine(N, accelerated(differs={0}, plain_ms=lambda c: 2.5 + c["x"]))
    run = await tuned(machine, n_final)
    assert run.proven() == (1, "compared", 1.0) and machine.proved == [0, 1]
    assert run.result.best_config == {"x": 1} and run.result.latency_ms == 2.0
    assert len(run.of(Warned)) == 1 and run.result.measured == N


@pytest.mark.parametrize("kind", ["mismatch", "fault", "timeout"])
@pytest.mark.parametrize("n_final", [0, 3])
async def test_a_plain_library_that_fails_its_check_is_a_failure_and_the_next_leader_wins(
    kind: Any, n_final: int, tmp_path: Path
) -> None:
    machine = FakeMachine(N, accelerated(differs={0}, plain_fails={0: kind}))
    run = await tuned(machine, n_final, journal=tmp_path / "j")
    assert [(e.index, e.kind) for e in run.of(BenchmarkFailed)] == [(0, kind)]
    assert run.proven() == (1, "compared", 1.0) and run.result.best_config == {"x": 1}
    assert (run.result.measured, run.result.failed) == (N - 1, 1)
    assert run.result.artifact is not None and run.result.artifact.index == 1
    again = replay(tmp_path / "j")
    assert again.proven and summary(again) == summary(run.result)


async def test_the_only_candidates_plain_library_that_fails_leaves_no_winner() -> None:
    machine = FakeMachine(1, accelerated(differs={0}, plain_fails={0: "mismatch"}))
    with pytest.raises(NoWinner, match="1 failed") as caught:
        await tune(machine=machine)
    assert not caught.value.result.proven


async def test_every_candidate_is_replaced_once_at_most() -> None:
    """All differ, and each plain library is slower than the next accelerated one."""
    machine = FakeMachine(5, accelerated(differs=range(5), plain_ms=lambda c: 10.0 + c["x"], compile_s=0.1))
    run = await tuned(machine)
    assert sorted(machine.proved) == list(range(5)) and len(run.of(Warned)) == 5
    assert run.proven()[:2] == (0, "replaced") and run.result.latency_ms == 10.0


@pytest.mark.parametrize("n_final", [0, 3])
async def test_with_no_device_for_the_plain_library_the_measured_result_stays_unproven(n_final: int) -> None:
    machine = FakeMachine(N, accelerated(differs={0}))

    async def start() -> Any:
        raise WorkerError("the fake device is gone")

    worker = machine.device_workers()[0]

    def listen(event: Event) -> None:
        if isinstance(event, Warned) and "takes its place" in event.message:
            worker.alive = False
            worker.start = start  # type: ignore[method-assign]

    settings = BenchmarkSettings(n_final=n_final)
    result = await tune(machine=machine, on_event=listen, compile=CompileSettings(group_size=1), benchmark=settings)
    assert not result.proven and result.best_config == {"x": 0} and result.latency_ms == 1.0
    assert "no device is left" in result.warnings[-1] and result.artifact is not None


async def test_nothing_is_proven_where_that_is_not_wanted() -> None:
    machine = FakeMachine(N, accelerated())
    run = await tuned(machine, compile=CompileSettings(prove=False))
    assert not machine.proved and not run.of(WinnerProven) and not run.result.proven and not run.result.warnings
    plain = await tuned(FakeMachine(N, Script()), compile=CompileSettings(prove=False))
    assert plain.proven()[1] == "plain"


@pytest.mark.parametrize("workers", [1, 2, 6])
async def test_a_worker_lost_over_a_proof_costs_a_second_try(workers: int) -> None:
    machine = FakeMachine(N, accelerated(prove_losses=1), workers=workers)
    run = await tuned(machine)
    assert run.proven()[:2] == (0, "compared") and not run.result.warnings
    assert machine.proved.count(0) == 2


@pytest.mark.parametrize("workers", [1, 6])
@pytest.mark.parametrize("script", [{"prove_losses": 99}, {"prove_fails": {0, 1}}])
async def test_a_proof_that_fails_leaves_the_result_unproven(script: dict[str, Any], workers: int) -> None:
    machine = FakeMachine(N, accelerated(**script), workers=workers)
    run = await tuned(machine)
    [warning] = run.of(Warned)
    assert "the winner, candidate 0, is not proven to be tilelang's own code: compiling it plain" in warning.message
    assert not run.result.proven and run.result.best_config == {"x": 0} and not run.of(WinnerProven)
    assert machine.proved.count(0) == (2 if "prove_losses" in script else 1)


async def test_a_stopped_run_proves_its_winner_and_nothing_else() -> None:
    machine = FakeMachine(N, accelerated(compile_s=lambda c: SLOW_S if c["x"] == 0 else 0.5), workers=6)

    def listen(event: Event) -> None:
        if isinstance(event, CandidateMeasured):
            tuner.stop()

    settings = CompileSettings(group_size=1)
    async with Tuner(machine=machine, compile=settings, on_event=listen) as tuner:
        result = await tuner.result()
    assert result.proven and result.finished and machine.proved == [result.best_index]


async def test_cancelling_kills_a_proof_and_the_run_is_not_proven() -> None:
    machine, events = FakeMachine(N, accelerated(prove_s=2 * SLOW_S)), list[Event]()
    async with Tuner(machine=machine, compile=CompileSettings(group_size=1), on_event=events.append) as tuner:
        async for event in tuner.events():
            if isinstance(event, FinalOrdered):
                break
    assert machine.running == 0 and machine.closed == 1 and machine.cancelled["prove"] == 1
    assert not Result.from_events(events).proven


async def cut(journal: Path, moment: Callable[[Event], bool], script: Script) -> None:
    """Leave what a run leaves that dies at `moment`."""
    await tune(machine=FakeMachine(N, script), journal=journal)
    end = next(k for k, event in enumerate(read(journal)) if moment(event))
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:end]))


async def test_a_run_that_died_before_its_end_is_not_proven_and_is_once_it_goes_on(tmp_path: Path) -> None:
    journal, script = tmp_path / "j", accelerated()
    await cut(journal, lambda event: isinstance(event, RunFinished), script)
    assert not replay(journal).proven
    machine = FakeMachine(N, script)
    result = await resume(journal, machine=machine)
    assert result.proven and machine.proved == [0] and result.best_config == {"x": 0}
    assert not machine.measured["fake-0"] and len([e for e in read(journal) if isinstance(e, FinalOrdered)]) == 1


async def test_a_run_cut_anywhere_ends_proven(tmp_path: Path) -> None:
    """Also where the plain library had taken the winner's place: it is compiled, compared and timed again."""
    script = accelerated(differs={0}, plain_ms=lambda c: 1.25 + c["x"])
    whole, part = tmp_path / "whole", tmp_path / "part"
    first = await tune(machine=FakeMachine(N, script), journal=whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    for end in [*range(1, len(lines), 5), *range(len(lines) - 4, len(lines))]:
        part.write_bytes(b"".join(lines[:end]))
        result = await resume(part, machine=FakeMachine(N, script))
        assert result.proven and result.best_config == {"x": 0} and result.latency_ms == 1.25, end
        assert summary(result).keys() == summary(first).keys() and replay(part).proven
        assert result.artifact is not None and result.artifact.plain


async def test_a_larger_budget_has_its_winner_proven_anew(tmp_path: Path) -> None:
    journal, script = tmp_path / "j", Script(latency_ms=lambda c: 9.0 - c["x"], cicc=True)
    assert (await tune(machine=FakeMachine(N, script), journal=journal, strategy="exhaustive", budget=3)).proven
    machine = FakeMachine(N, script)
    result = await resume(journal, machine=machine, budget=None)
    assert result.proven and result.best_config == {"x": 7} and 7 in machine.proved
    assert [e.index for e in read(journal) if isinstance(e, WinnerProven)] == [2, 7]


def test_a_result_is_proven_once_the_run_finished_with_that_winner() -> None:
    def proven(stream: Stream) -> bool:
        return Result.from_events(stream.events).proven

    def measured() -> Stream:
        return Stream(total=2).ready().candidate(0, 2.0).candidate(1, 1.0)

    assert proven(measured().proven(1).finished())
    assert not proven(measured().finished()) and not proven(measured().proven(1))
    assert not proven(measured().proven(1).interrupted())
    assert not proven(measured().proven(0).finished())  # another won
    assert not proven(measured().proven(1).finished().resumed()) and not proven(Stream().finished())
    twins = Stream(total=2).ready().proposed(1).lowered(1, "c").built(1).measured(1, 1.0)
    assert proven(twins.proposed(0).lowered(0, "c").aliased(0, 1).proven(1).finished())  # credited to the first


def test_a_measurement_after_the_final_has_the_last_word() -> None:
    stream = Stream(total=2).ready().candidate(0, 2.0).candidate(1, 1.0).final({1: [1.0], 0: [2.0]})
    assert Result.from_events(stream.events).best_index == 1
    assert Result.from_events(stream.measured(1, 3.0).events).best_index == 0
