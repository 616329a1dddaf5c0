"""The engine's and the journal's own cost stays small and linear; many workers all get work."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import anyio
import pytest
from fake_runs import finish
from idle import InstantClock

from atune.frontends.tuner import tune
from atune.journal.events import CandidateLowered
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.testing import FakeMachine, Script

LIMIT_MS = 1.0
"""Of processor time, a candidate."""


def cost_ms(total: int, journal: Path | None) -> float:
    """Return the processor time that a run over instant fakes takes, ms a candidate."""
    script = Script(latency_ms=lambda c: 1.0 + (c["x"] * 7919 % total) / total)
    machine = FakeMachine(total, script, workers=4, devices=2, clock=InstantClock())
    gc.collect()
    started = time.process_time()
    result = anyio.run(lambda: tune(machine=machine, journal=journal))
    assert result.measured == total
    return 1e3 * (time.process_time() - started) / total


@pytest.mark.parametrize("synced", [True, False])
def test_a_candidate_costs_under_a_millisecond_and_no_more_when_there_are_many(tmp_path: Path, synced: bool) -> None:
    few, many = (min(cost_ms(n, tmp_path / f"{n}-{i}" if synced else None) for i in range(2)) for n in (500, 20_000))
    assert few < LIMIT_MS and many < LIMIT_MS and many < 2 * few


def test_replay_takes_ten_microseconds_an_event(tmp_path: Path) -> None:
    path = tmp_path / "j"
    cost_ms(5000, path)
    events = path.read_bytes().count(b"\n")
    taken = []
    for _ in range(3):
        started = time.process_time()
        assert Result.from_events(JournalReader(path)).measured == 5000
        taken.append(time.process_time() - started)
    assert events > 20_000 and min(taken) / events < 10e-6


@pytest.mark.anyio
async def test_all_idle_workers_begin_where_there_is_work_for_all() -> None:
    machine = FakeMachine(400, Script(), workers=128, devices=2)
    assert (await tune(machine=machine)).measured == 400
    assert machine.most_at_once["lower"] == 128


@pytest.mark.anyio
async def test_neighbours_are_lowered_by_one_worker_which_may_share_the_work() -> None:
    """Not the last ones, which all workers share."""
    machine = FakeMachine([{"x": x, "y": y} for x in range(20) for y in range(2)], workers=3)
    run = await finish(machine)
    workers = {event.index: event.worker for event in run.of(CandidateLowered)}
    assert (
        sum(workers[index] == workers[index + 1] for index in range(0, 40, 2)) >= 16 and len({*workers.values()}) == 3
    )
