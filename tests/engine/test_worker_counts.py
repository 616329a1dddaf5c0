"""Few candidates are compiled each alone and at once; many workers all get work, and cost no more than few."""

from __future__ import annotations

import pytest
from fake_runs import finish

from atune import tune
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


async def test_all_idle_workers_begin_where_there_is_work_for_all() -> None:
    machine = FakeMachine(N, Script(), workers=128, devices=2)
    assert (await tune(machine=machine)).measured == N
    assert machine.most_at_once["lower"] == 128
