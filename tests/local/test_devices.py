"""Devices that are lost, slow or doubted, over scripted ones: what is measured again, where, and who wins."""

from __future__ import annotations

import random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fake_runs import finish, valley
from own_strategy import Own

from atune.engine.final import INTERIM_LOOKS
from atune.errors import ServerLost, WorkerError
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    CandidateMeasured,
    DeviceLost,
    DeviceReady,
    FinalOrdered,
    Warned,
)
from atune.journal.result import Result
from atune.model.jobs import Started, StartJob
from atune.model.settings import BenchmarkSettings
from atune.reporting.summary import summary
from atune.testing import FakeDeviceWorker, FakeMachine, Script

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("script", "repeated", "starts"),
    [(Script(doubts={3: 1}), [3], 2), (Script(spoilt={3: "fault", 5: "launch", 6: "load"}), [3, 5, 6], 4)],
)
async def test_what_is_another_s_fault_is_measured_in_a_fresh_process(
    script: Script, repeated: list[int], starts: int
) -> None:
    """SIGKILL from outside while it is measured, or a process that others have spoilt, which is replaced."""
    machine = FakeMachine(8, script)
    run = await finish(machine)
    assert run.result.measured == 8 and not run.of(BenchmarkFailed)
    assert [e.index for e in run.of(BenchmarkRepeated)] == repeated
    assert len(run.of(DeviceLost)) == 1 and len(run.of(DeviceReady)) == starts
    assert machine.measured["fake-0"].count(3) == 2


@pytest.mark.parametrize(
    ("script", "kind"),
    [(Script(fails={3: "launch"}, doubts={3: 1}), "launch"), (Script(doubts={3: 5}), "worker_lost")],
)
async def test_what_fails_in_a_fresh_process_too_counts(script: Script, kind: str) -> None:
    machine = FakeMachine(8, script)
    run = await finish(machine)
    assert [(e.index, e.kind) for e in run.of(BenchmarkFailed)] == [(3, kind)]
    assert machine.measured["fake-0"].count(3) == 2 and len(run.of(BenchmarkRepeated)) == 1


@pytest.mark.parametrize("kind", ["mismatch", "out_of_bounds"])
async def test_a_finalist_that_is_wrong_once_it_was_timed_is_a_failure_and_the_next_leader_wins(kind: Any) -> None:
    """The final is held again without it, with the candidate that comes next in its place."""
    machine = FakeMachine(8, Script(latency_ms=valley(0), final_fails={0: kind, 2: kind}))
    run = await finish(machine, benchmark=BenchmarkSettings(n_final=3))
    assert [(e.index, e.kind) for e in run.of(BenchmarkFailed)] == [(0, kind), (2, kind)]
    assert [set(finalists) for finalists in machine.finals[:2]] == [{0, 1, 2}, {1, 3, 4}]
    assert run.result.best_index == 1 and (run.result.measured, run.result.failed) == (6, 2)
    assert len(run.of(FinalOrdered)) == 1 and len(run.of(DeviceLost)) == (kind == "out_of_bounds")
    replayed = Result.from_events(run.events)
    assert summary(replayed) | {"journal": None} == summary(run.result) | {"journal": None}


@pytest.mark.parametrize("index", [3, 7])
async def test_a_process_that_ends_between_two_candidates_blames_none(index: int) -> None:
    run = await finish(FakeMachine(8, Script(dies_after={index: 1}), workers=1))
    assert run.result.measured == 8 and not run.of(BenchmarkFailed) and not run.of(BenchmarkRepeated)
    assert [e.reason for e in run.of(DeviceLost)] == ["the device's process ended between two candidates"]
    assert len(run.of(FinalOrdered)) == 1


async def test_the_winner_is_found_also_where_the_slower_device_measured_it() -> None:
    """By its first timing there, three others are faster."""
    on_the_slower = list[bool]()
    for slow in ("fake-0", "fake-1"):
        script = Script(latency_ms=lambda c: 1.0 if c["x"] == 9 else 1.01 + 0.001 * c["x"], slowdown={slow: 1.04})
        settings = BenchmarkSettings(n_final=3)
        run = await finish(FakeMachine(24, script, devices=2, benchmark=settings), benchmark=settings)
        [measured] = [event for event in run.of(CandidateMeasured) if event.index == 9]
        on_the_slower.append(measured.device == slow)
        assert run.result.best_index == 9
    assert any(on_the_slower)


async def test_a_figure_far_below_its_neighbours_is_confirmed_in_a_fresh_process() -> None:
    """7 looks a hundred times faster than it is, once; the second figure counts."""
    machine = FakeMachine(12, Script(latency_ms=valley(2), first_ms={7: 0.01}), workers=1)
    run = await finish(machine)
    [repeated] = run.of(BenchmarkRepeated)
    assert repeated.index == 7 and "far below the fastest of 7 neighbours" in repeated.reason
    assert len(run.of(DeviceReady)) == 2 and run.result.best_index == 2
    assert [e.timing.latency_ms for e in run.of(CandidateMeasured) if e.index == 7] == [6.0]
    run = await finish(FakeMachine(12, Script(latency_ms=lambda c: 0.1 if c["x"] == 7 else 5.0), workers=1))
    assert [e.index for e in run.of(BenchmarkRepeated)] == [7] and run.result.best_index == 7  # it was confirmed


def noisy(spread: float) -> Any:
    """Return normal noise of this standard deviation, the same in every run."""
    draw = random.Random(3)
    return lambda index: draw.gauss(1, spread)


async def test_the_final_goes_on_until_the_order_is_settled() -> None:
    """The two best differ by 1 %, below 3 % of noise: twenty rounds do not tell; the losers stop earlier."""
    script = Script(latency_ms=lambda c: {4: 1.0, 5: 1.01}.get(c["x"], 1.5), final_noise=noisy(0.03))
    machine = FakeMachine(8, script)
    run = await finish(machine, benchmark=BenchmarkSettings(n_final=4))
    assert run.result.best_index == 4 and len(machine.finals) > 1
    assert len(machine.finals[0]) == 4 and all(sorted(f) == [4, 5] for f in machine.finals[1:])
    samples = {e.index: e.timing.n_samples for e in run.of(FinalOrdered)[0].entries}
    assert samples[4] == samples[5] == 20 * len(machine.finals)
    assert {samples[i] for i in samples if i not in (4, 5)} == {20}


async def test_the_final_ends_at_its_limit_and_a_tie_goes_to_the_smaller_key() -> None:
    winners = set()
    for phase in (0.0, 0.0002):
        script = Script(latency_ms=lambda c, p=phase: 1.0 + p * c["x"], final_noise=noisy(0.01))  # type: ignore[misc]
        machine = FakeMachine(4, script)
        run = await finish(machine, benchmark=BenchmarkSettings(n_final=4))
        assert len(machine.finals) <= INTERIM_LOOKS
        keys = {r.index: r.key for r in run.result.records}
        winners.add(run.result.best_index)
        assert run.result.best_index == min(keys, key=lambda i: keys[i])
    assert len(winners) == 1


class OneByOne(Own):
    """A strategy that waits for each outcome."""

    most_outstanding = 1


def losing(monkeypatch: pytest.MonkeyPatch, stage: str) -> list[str]:
    """Lose the device that is the first to come to `stage`, for good. Returns a list for its name."""
    lost = list[str]()
    original, start = getattr(FakeDeviceWorker, f"_{stage}"), FakeDeviceWorker._start

    async def once(self: FakeDeviceWorker, *given: Any) -> Any:
        if lost:
            return await original(self, *given)
        lost.append(self.name)
        self.alive = False
        raise ServerLost("its host is gone")

    async def started(self: FakeDeviceWorker, job: StartJob) -> Started:
        if self.name in lost:
            raise WorkerError("its host is gone")
        return await start(self, job)

    monkeypatch.setattr(FakeDeviceWorker, f"_{stage}", once)
    monkeypatch.setattr(FakeDeviceWorker, "_start", started)
    return lost


@pytest.mark.parametrize("stage", ["prepare", "measure"])
async def test_what_a_lost_device_left_is_measured_before_anything_new(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy proposes nothing before it knows the outcome, and the other device waits for a proposal."""
    lost = losing(monkeypatch, stage)
    with anyio.fail_after(20):
        run = await finish(FakeMachine(6, Script(latency_ms=valley(2)), devices=2), strategy=OneByOne())
    assert lost and run.result.measured == 6 and run.result.best_index == 2


async def test_a_final_whose_device_is_given_up_is_held_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = losing(monkeypatch, "final")
    run = await finish(FakeMachine(6, Script(latency_ms=valley(2)), devices=2))
    [lost], [ordered] = gone, run.of(FinalOrdered)
    assert ordered.device != lost and run.result.best_index == 2 and not run.of(Warned)


async def test_a_final_whose_device_is_lost_is_held_again() -> None:
    run = await finish(FakeMachine(6, Script(final_losses=1, latency_ms=valley(2))))
    assert len(run.of(FinalOrdered)) == 1 and len(run.of(DeviceReady)) == 2 and not run.of(Warned)
    run = await finish(FakeMachine(6, Script(final_losses=2, latency_ms=valley(2))))
    assert not run.of(FinalOrdered) and "no final" in run.of(Warned)[0].message and run.result.best_index == 2
