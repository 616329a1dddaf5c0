"""Few candidates are compiled each alone and at once; many workers all get work, and cost no more than few."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fake_runs import finish
from idle import InstantClock

from atune import tune
from atune.engine.scheduler import CompileState
from atune.journal.events import ArtifactBuilt
from atune.testing import FakeClock, FakeMachine, Script

pytestmark = pytest.mark.anyio

N = 400
LOOKS = 15
"""Of all compile workers for work, a candidate."""
SCRIPT = Script(lower_s=0.1, compile_s=2.0)


@pytest.mark.parametrize("workers", [1, 16])
async def test_a_single_candidate_is_compiled_once_and_held_in_no_final(workers: int) -> None:
    machine = FakeMachine(1, SCRIPT, workers=workers, clock=FakeClock())
    run = await finish(machine)
    assert (machine.lowered, machine.groups, machine.compared, machine.finals) == ([0], [(0,)], [], [])
    assert run.result.artifact is not None and run.result.artifact.plain


@pytest.mark.parametrize(("total", "budget"), [(2, None), (15, None), (36, 4)])
async def test_few_candidates_are_compiled_each_alone_and_at_once(total: int, budget: int | None) -> None:
    """Each by a worker of its own: the last library is there when the first is."""
    machine, candidates = FakeMachine(total, SCRIPT, workers=16, clock=FakeClock()), budget or total
    run = await finish(machine, strategy="exhaustive", budget=budget)
    assert sorted(map(len, machine.groups)) == [1] * candidates
    assert len({event.worker for event in run.of(ArtifactBuilt)}) == candidates == machine.most_at_once["build"]
    assert machine.compared == []


@pytest.mark.parametrize("workers", [2, 128])
async def test_idle_workers_do_not_all_look_for_work_at_each_change(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, ask = Counter[str](), CompileState.next_job

    def next_job(state: CompileState) -> Any:
        counted["looks"] += 1
        return ask(state)

    monkeypatch.setattr(CompileState, "next_job", next_job)
    machine = FakeMachine(N, Script(), workers=workers, devices=2, clock=InstantClock())
    assert (await tune(machine=machine)).measured == N
    assert counted["looks"] < LOOKS * N


async def test_all_idle_workers_begin_where_there_is_work_for_all() -> None:
    machine = FakeMachine(N, Script(), workers=128, devices=2)
    assert (await tune(machine=machine)).measured == N
    assert machine.most_at_once["lower"] == 128
