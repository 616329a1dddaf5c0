"""Many compile workers: all of them get work, and waiting for it costs no more than with few."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from atune import tune
from atune.engine.scheduler import CompileState
from atune.testing import FakeMachine, InstantClock, Script

pytestmark = pytest.mark.anyio

N = 400
LOOKS = 15
"""Of all compile workers for work, a candidate."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often workers ask the scheduler for a job."""
    counted, ask = Counter[str](), CompileState.next_job

    def next_job(state: CompileState) -> Any:
        counted["looks"] += 1
        return ask(state)

    monkeypatch.setattr(CompileState, "next_job", next_job)
    return counted


@pytest.mark.parametrize("workers", [2, 128])
async def test_idle_workers_do_not_all_look_for_work_at_each_change(looks: Counter[str], workers: int) -> None:
    machine = FakeMachine(N, Script(), workers=workers, devices=2, clock=InstantClock())
    assert (await tune(machine=machine)).measured == N
    assert looks["looks"] < LOOKS * N


async def test_all_idle_workers_begin_where_there_is_work_for_all() -> None:
    machine = FakeMachine(N, Script(), workers=128, devices=2)
    assert (await tune(machine=machine)).measured == N
    assert machine.most_at_once["lower"] == 128
