"""Devices that are lost, slow or doubted, over scripted ones: what is measured again, where, and who wins."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fake_runs import finish, valley

from atune.engine.final import LOOKS
from atune.errors import DevicesLost, ServerLost, WorkerError
from atune.frontends.api.tuner import tune
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    CandidateMeasured,
    DeviceExcluded,
    DeviceLost,
    DeviceReady,
    FinalOrdered,
    RunInterrupted,
    Warned,
)
from atune.journal.reader import read
from atune.journal.result import Result
from atune.model.device import DeviceInfo
from atune.model.settings import BenchmarkSettings
from atune.reporting.summary import summary
from atune.testing import FakeDeviceWorker, FakeMachine, Script

pytestmark = pytest.mark.anyio


async def test_a_device_killed_from_outside_costs_its_candidate_nothing() -> None:
    """SIGKILL while 3 is measured: it is measured again on a fresh process, and counts."""
    machine = FakeMachine(8, Script(doubts={3: 1}))
    run = await finish(machine)
    assert run.result.measured == 8 and not run.of(BenchmarkFailed)
    assert [(e.index, e.reason) for e in run.of(BenchmarkRepeated)] == [(3, "scripted to be another's fault")]
    assert len(run.of(DeviceLost)) == 1 and len(run.of(DeviceReady)) == 2
    assert machine.measured["fake-0"].count(3) == 2


async def test_what_fails_in_a_process_that_others_spoilt_is_measured_in_a_fresh_one() -> None:
    machine = FakeMachine(8, Script(spoilt={3: "fault", 5: "launch", 6: "load"}))
    run = await finish(machine)
    assert run.result.measured == 8 and not run.of(BenchmarkFailed)
    assert [e.index for e in run.of(BenchmarkRepeated)] == [3, 5, 6]
    assert len(run.of(DeviceLost)) == 1 and len(run.of(DeviceReady)) == 4  # the other two processes were replaced


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
async def test_a_finalist_that_is_wrong_once_it_was_timed_is_a_failure_and_the_next_leader_wins(
    kind: Any, tmp_path: Path
) -> None:
    """The final is held again without it, with the candidate that comes next in its place."""
    machine = FakeMachine(8, Script(latency_ms=valley(0), final_fails={0: kind, 2: kind}))
    run = await finish(machine, benchmark=BenchmarkSettings(n_final=3), journal=tmp_path / "j")
    assert [(e.index, e.kind) for e in run.of(BenchmarkFailed)] == [(0, kind), (2, kind)]
    assert [set(finalists) for finalists in machine.finals[:2]] == [{0, 1, 2}, {1, 3, 4}]
    assert run.result.best_index == 1 and (run.result.measured, run.result.failed) == (6, 2)
    assert len(run.of(FinalOrdered)) == 1 and len(run.of(DeviceLost)) == (kind == "out_of_bounds")
    replayed = Result.from_events(read(tmp_path / "j"))
    assert summary(replayed) | {"journal": None} == summary(run.result) | {"journal": None}


@pytest.mark.parametrize("index", [3, 7])
async def test_a_process_that_ends_between_two_candidates_blames_none(index: int) -> None:
    run = await finish(FakeMachine(8, Script(dies_after={index: 1}), workers=1))
    assert run.result.measured == 8 and not run.of(BenchmarkFailed) and not run.of(BenchmarkRepeated)
    assert [e.reason for e in run.of(DeviceLost)] == ["its process ended between two candidates"]
    assert len(run.of(FinalOrdered)) == 1


@pytest.mark.parametrize("slow", ["fake-0", "fake-1", "fake-2"])
async def test_a_device_that_is_not_as_fast_as_the_others_is_left_out(slow: str, tmp_path: Path) -> None:
    """Its figures do not count, whenever it is found out, and what it measured is measured again by the others."""
    script = Script(latency_ms=valley(9), slowdown={slow: 0.9}, lower_s=0.01, compile_s=0.01)
    machine = FakeMachine(24, script, devices=3)
    run = await finish(machine, journal=tmp_path / "j")
    [excluded] = run.of(DeviceExcluded)
    assert excluded.device == slow and "0.900 times" in excluded.reason
    assert run.result.measured == 24 and run.result.best_index == 9
    assert slow not in {r.device for r in run.result.records} and run.of(FinalOrdered)[0].device != slow
    assert any(slow in warning for warning in run.result.warnings)
    replayed = Result.from_events(read(tmp_path / "j"))
    assert summary(replayed) | {"journal": None} == summary(run.result) | {"journal": None}


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
        assert len(machine.finals) <= LOOKS
        keys = {r.index: r.key for r in run.result.records}
        winners.add(run.result.best_index)
        assert run.result.best_index == min(keys, key=lambda i: keys[i])
    assert len(winners) == 1


async def test_the_default_wins_among_equals_and_the_final_tells_the_ties() -> None:
    """Four of one speed, and one that is plainly slower: without the default the key would choose."""
    for default in range(4):
        machine = FakeMachine(5, Script(latency_ms=lambda c: 1.0 if c["x"] < 4 else 2.0), default=default)
        run = await finish(machine, benchmark=BenchmarkSettings(n_final=5))
        assert run.result.best_index == default
        assert sorted([default, *(run.result.ties or ())]) == [0, 1, 2, 3]
    run = await finish(FakeMachine(5, Script(latency_ms=valley(2))))
    assert run.result.ties == () and run.of(FinalOrdered)[0].ties == ()


class OneByOne:
    """A strategy that waits for each outcome."""

    name, most_outstanding = "one by one", 1

    def __init__(self, total: int) -> None:
        self._left = list(range(total))

    def ask(self) -> int | None:
        return self._left.pop() if self._left else None

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


def losing(monkeypatch: pytest.MonkeyPatch, stage: str, after: int = 0) -> list[str]:
    """Lose the device that comes to `stage` when others did so `after` times, for good. Returns a list for its name."""
    lost, done = list[str](), itertools.count()
    original, start = getattr(FakeDeviceWorker, f"_{stage}"), FakeDeviceWorker.start

    async def once(self: FakeDeviceWorker, *given: Any) -> Any:
        if next(done) != after:
            return await original(self, *given)
        lost.append(self.name)
        self.alive = False
        raise ServerLost("its host is gone")

    async def started(self: FakeDeviceWorker) -> DeviceInfo:
        if self.name in lost:
            raise WorkerError("its host is gone")
        return await start(self)

    monkeypatch.setattr(FakeDeviceWorker, f"_{stage}", once)
    monkeypatch.setattr(FakeDeviceWorker, "start", started)
    return lost


async def test_the_last_device_lost_in_the_middle_leaves_a_whole_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, "measure", after=5)
    with pytest.raises(DevicesLost, match="no device is left"):
        await tune(machine=FakeMachine(20), journal=tmp_path / "j")
    events = read(tmp_path / "j")
    assert isinstance(events[-1], RunInterrupted) and "DevicesLost" in events[-1].reason
    measured = Result.from_events(events).measured
    assert measured == sum(isinstance(e, CandidateMeasured) for e in events) > 0


@pytest.mark.parametrize("stage", ["prepare", "measure"])
async def test_what_a_lost_device_left_is_measured_before_anything_new(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy proposes nothing before it knows the outcome, and the other device waits for a proposal."""
    lost = losing(monkeypatch, stage)
    with anyio.fail_after(20):
        run = await finish(FakeMachine(6, Script(latency_ms=valley(2)), devices=2), strategy=OneByOne(6))
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
