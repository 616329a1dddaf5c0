"""The engine over scripted compilers and devices, on asyncio and on trio: order, counts, failures, ends."""

from __future__ import annotations

import math
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from fake_runs import anyio_backend as anyio_backend
from fake_runs import finish, valley
from msgspec.structs import replace

from atune.errors import DevicesLost, NoWinner
from atune.frontends.tuner import Tuner, tune
from atune.journal.events import (
    ArtifactBuilt,
    BestChanged,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidatePruned,
    DeviceLost,
    DeviceReady,
    Event,
    FinalOrdered,
    ReferenceMeasured,
    RunFinished,
    RunInterrupted,
    RunStarted,
)
from atune.journal.reader import read
from atune.journal.result import Result
from atune.model.artifact import StaticFacts
from atune.model.device import DeviceLimits
from atune.model.settings import BenchmarkSettings
from atune.reporting.export import table
from atune.reporting.summary import summary
from atune.testing import FakeClock, FakeMachine, Script
from atune.workload.workload import WorkloadSpec

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("workers", "devices"), [(1, 1), (2, 1), (5, 3)])
async def test_all_candidates_are_measured_and_the_fastest_wins(workers: int, devices: int) -> None:
    machine = FakeMachine(40, Script(latency_ms=valley(17)), workers=workers, devices=devices)
    run = await finish(machine)
    assert run.measured() == sorted(machine.lowered) == sorted(i for g in machine.groups for i in g) == list(range(40))
    assert run.result.best_config == {"x": 17} and run.result.latency_ms == 1.0 and run.result.reference_ms == 2.0
    assert run.result.measured == 40 and not run.result.remaining
    assert isinstance(run.events[0], RunStarted) and isinstance(run.events[-1], RunFinished)
    assert len(run.of(DeviceReady)) == len(run.of(ReferenceMeasured)) == devices
    assert not run.result.warnings and run.events[-1].reason == "exhausted"
    kept = run.events[-1].kernel
    assert kept is not None and kept.index == 17 and Path(kept.path).is_relative_to(os.environ["XDG_CACHE_HOME"])
    latencies = [e.latency_ms for e in run.of(BestChanged)]
    assert latencies == sorted(latencies, reverse=True) and latencies[-1] == 1.0


async def test_duplicates_are_measured_once_and_credited_to_the_first() -> None:
    """Candidates 0 to 9 twice over; a later twin is lowered first, the smaller index gets the credit."""
    script = Script(
        code_key=lambda c: str(c["x"] % 10),
        lower_s=lambda c: 60.0 if c["x"] == 4 else 0.1,
        latency_ms=lambda c: 1.0 + abs(c["x"] % 10 - 4),
    )
    run = await finish(FakeMachine(20, script, workers=2))
    assert run.result.measured == 10 and run.result.duplicates == 10
    assert len(run.of(CandidateMeasured)) == 10 == len(run.of(CandidateAliased))
    assert any(e.same_as > e.index for e in run.of(CandidateAliased))  # 14 came before 4
    assert run.result.best_index == 4 and run.result.best_config == {"x": 4}
    assert [r.index for r in run.result.records if r.status == "measured"] == list(range(10))
    assert {r.same_as for r in run.result.records if r.status == "duplicate"} == set(range(10))


async def test_the_screen_prunes_what_cannot_launch_and_defers_what_may_spill() -> None:
    def facts(config: dict[str, Any]) -> StaticFacts:
        x = config["x"]
        return StaticFacts(
            smem_bytes=2000 if x in (1, 2) else 500,
            threads=2048 if x == 3 else 128,
            accumulators=300 if x in (0, 5) else 8,
        )

    machine = FakeMachine(30, Script(facts=facts), limits=DeviceLimits(smem_bytes=1000, threads=1024))
    run = await finish(machine)
    assert {e.index: e.reason.split(":")[0] for e in run.of(CandidatePruned)} == {
        1: "shared memory",
        2: "shared memory",
        3: "threads",
    }
    assert {e.index for e in run.of(CandidateLowered) if e.deferred} == {0, 5}
    built = [i for e in run.of(ArtifactBuilt) for i in e.indices]
    assert machine.groups[-2:] == [(0,), (5,)] and set(built) == set(range(30)) - {1, 2, 3}
    assert run.result.pruned == 3 and run.result.measured == 27


def heavy(config: dict[str, Any]) -> StaticFacts:
    return StaticFacts(accumulators=512 if config["x"] % 2 else 64)


async def test_likely_losers_are_skipped_under_a_budget_and_tried_without_one() -> None:
    script = Script(latency_ms=lambda c: 1.0 + c["x"], facts=heavy)
    run = await finish(FakeMachine(12, script), budget=10, strategy="exhaustive")
    assert run.measured() == [0, 2, 4, 6, 8]
    reason = "likely: accumulators take 512 registers"
    assert all(e.likely and e.reason.startswith(reason) for e in run.of(CandidatePruned))
    assert (run.result.pruned, run.result.remaining) == (5, 2)
    whole = await finish(FakeMachine(12, script), strategy="exhaustive")
    assert len(whole.measured()) == 12
    script = Script(facts=lambda c: StaticFacts(accumulators=512))
    run = await finish(FakeMachine(12, script), budget=4, strategy="exhaustive")
    assert len(run.measured()) == 4  # where all are likely losers


@pytest.mark.parametrize("devices", [1, 2])
async def test_with_no_device_that_starts_the_run_ends(devices: int, tmp_path: Path) -> None:
    script = Script(start_failures={"fake-0": math.inf, "fake-1": math.inf})
    machine = FakeMachine(300, script, devices=devices)
    with pytest.raises(DevicesLost, match="no device is left"):
        await tune(machine=machine, journal=tmp_path / "j")
    assert machine.closed == 1 and machine.running == 0
    last = read(tmp_path / "j")[-1]
    assert isinstance(last, RunInterrupted) and "DevicesLost" in last.reason
    if devices == 2:  # one that never starts is left out
        machine = FakeMachine(10, Script(start_failures={"fake-0": math.inf}), devices=2)
        lost = (await finish(machine)).of(DeviceLost)
        assert [e.final for e in lost] == [False, False, True] and "output of the fake driver" in lost[0].reason
        assert len(machine.measured["fake-1"]) == 10 and not machine.measured["fake-0"]


async def test_the_final_times_the_best_and_the_default() -> None:
    """The final has the last word, also where it turns the first timings round."""
    script = Script(latency_ms=valley(10), final_ms=lambda c: 0.5 if c["x"] == 11 else 1.0 + abs(c["x"] - 10))
    machine = FakeMachine(21, script, default=3)
    run = await finish(machine, benchmark=BenchmarkSettings(n_final=3, n_final_rounds=8))
    [finalists] = machine.finals
    assert finalists[0] == 10 and set(finalists[1:3]) == {9, 11} and finalists[3] == 3
    assert len(finalists) == 4
    assert run.result.best_index == 11 and run.result.latency_ms == 0.5
    assert all(len(e.timing.samples_us) == 8 for e in run.of(FinalOrdered)[0].entries)
    assert run.result.speedup_over_default is not None and run.result.speedup_over_default[0] > 1


@pytest.mark.parametrize("pipeline", [True, False])
async def test_a_budget_in_seconds(pipeline: bool) -> None:
    """What is under way ends, the final comes, and the rest is counted as remaining. Here a virtual second is 10 ms."""
    for seconds in (0.4, 1.6, 6.4):  # a busy machine may hold no final after the shorter ones
        machine, events = FakeMachine(5000, clock=FakeClock(pace=0.01)), list[Event]()
        options: dict[str, Any] = {"budget": f"{seconds}s", "strategy": "exhaustive", "pipeline": pipeline}
        started = time.monotonic()
        with anyio.fail_after(seconds + 10):
            try:
                result = await tune(machine=machine, on_event=events.append, **options)
            except NoWinner as error:
                result = error.result
        assert time.monotonic() - started >= seconds
        assert events[-1].reason == "budget" and result.remaining > 1000  # type: ignore[attr-defined]
        assert machine.closed == 1 and machine.running == 0
        final = any(isinstance(event, FinalOrdered) for event in events)
        if final == pipeline:
            break
    assert final == pipeline == (result.best is not None)  # without the pipeline nothing was measured in time


async def test_events_come_whole_to_readers_who_come_early_late_and_afterwards() -> None:
    machine = FakeMachine(12)
    readers: dict[str, list[Event]] = {"early": [], "late": [], "after": []}
    measured = anyio.Event()

    async def read(name: str) -> None:
        async for event in tuner.events():
            readers[name].append(event)
            if isinstance(event, CandidateMeasured):
                measured.set()

    async with Tuner(machine=machine) as tuner:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "early")
            await measured.wait()
            tasks.start_soon(read, "late")
        result = await tuner.result()
        await read("after")
    assert readers["early"] == readers["late"] == readers["after"]
    assert [e.seq for e in readers["late"]] == list(range(len(readers["late"])))
    assert isinstance(readers["late"][-1], RunFinished) and result.measured == 12


async def test_stop_ends_the_run_in_order() -> None:
    machine = FakeMachine(500)
    async with Tuner(machine=machine) as tuner:
        count = 0
        async for event in tuner.events():
            count += isinstance(event, CandidateMeasured)
            if count == 5:
                tuner.stop()
        result = await tuner.result()
    assert 5 <= result.measured < 30 and result.remaining > 400 and result.finished
    assert isinstance(event, RunFinished) and event.reason == "stopped" and len(machine.finals) == 1


async def test_the_journal_folds_to_the_live_result(tmp_path: Path) -> None:
    script = Script(
        latency_ms=valley(9),
        code_key=lambda c: str(c["x"] % 17),
        fails={3: "compile", 5: "mismatch", 8: "fault", 2: "lower"},
        facts=lambda c: StaticFacts(smem_bytes=c["x"] * 100),
    )
    path = tmp_path / "run.jsonl"
    run = await finish(FakeMachine(20, script, devices=2, limits=DeviceLimits(smem_bytes=1500)), journal=path)
    events = read(path)
    assert events == run.events
    folded = Result.from_events(events, path)
    assert summary(folded) == summary(run.result) and folded.records == run.result.records
    assert table(folded) == table(run.result) and folded.final == run.result.final
    times = [e.mono for e in events]
    assert all(a <= b for a, b in pairwise(times))


@pytest.mark.parametrize("edited", [True, False])
async def test_a_file_that_is_edited_meanwhile_is_named(tmp_path: Path, edited: bool) -> None:
    class FromFile(FakeMachine):
        async def describe(self, *, seed: int = 0) -> WorkloadSpec:
            return replace(await super().describe(seed=seed), origin=f"{file}:W")

    def edit(event: Event) -> None:
        if isinstance(event, CandidateMeasured) and edited:
            os.utime(file, (time.time() + 1,) * 2)

    file = tmp_path / "w.py"
    file.touch()
    os.utime(file, (0, 0))
    result = await tune(machine=FromFile(3), on_event=edit)
    told = (f"{file} was edited during the run; the results are for the version that was loaded",)
    assert tuple(result.warnings) == told * edited
