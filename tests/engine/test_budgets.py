"""What ends a run before all is tried, what it skips, and how that is told."""

from __future__ import annotations

from typing import Any

import pytest
from fake_runs import finish

from atune.journal.events import CandidatePruned
from atune.model.artifact import StaticFacts
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio


def heavy(config: dict[str, Any]) -> StaticFacts:
    return StaticFacts(accumulators=512 if config["x"] % 2 else 64)


async def test_likely_losers_are_skipped_under_a_budget_and_tried_without_one() -> None:
    script = Script(latency_ms=lambda c: 1.0 + c["x"], facts=heavy)
    run = await finish(FakeMachine(12, script), budget=10, strategy="exhaustive")
    assert run.measured() == [0, 2, 4, 6, 8]
    assert all(e.likely and e.reason.startswith("likely: 512 registers") for e in run.of(CandidatePruned))
    assert [(one.count, one.reason[:6]) for one in run.result.untried] == [(5, "likely"), (2, "the bu")]
    whole = await finish(FakeMachine(12, script), strategy="exhaustive")
    assert len(whole.measured()) == 12 and whole.result.untried == ()


async def test_where_all_are_likely_losers_they_are_tried() -> None:
    script = Script(facts=lambda c: StaticFacts(accumulators=512))
    run = await finish(FakeMachine(12, script), budget=4, strategy="exhaustive")
    assert len(run.measured()) == 4


async def test_a_block_that_waits_for_registers_for_ever_is_pruned() -> None:
    script = Script(facts=lambda c: StaticFacts(lacking_registers=1024 if c["x"] == 1 else 0))
    run = await finish(FakeMachine(4, script))
    assert [(e.index, e.likely) for e in run.of(CandidatePruned)] == [(1, False)]
    assert "setmaxnreg" in run.result.untried[0].reason
