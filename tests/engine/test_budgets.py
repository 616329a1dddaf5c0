"""What ends a run before all is tried, what it skips, and how that is audited and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from fake_runs import finish

from atune import resume, tune
from atune.journal.events import CandidateMeasured, CandidateProposed, CandidatePruned, Event
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.model.artifact import StaticFacts
from atune.model.settings import CompileSettings
from atune.reporting.summary import summary
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

ONE = CompileSettings(group_size=1)


def heavy(config: dict[str, Any]) -> StaticFacts:
    return StaticFacts(accumulators=512 if config["x"] % 2 else 64)


def proposed(journal: Path) -> list[int]:
    return [e.index for e in read(journal) if isinstance(e, CandidateProposed)]


async def until_measured(count: int, journal: Path, machine: FakeMachine, **options: Any) -> None:
    """Run until so many are measured in this part, then cancel."""
    seen: list[Event] = []
    with anyio.CancelScope() as scope:

        def listen(event: Event) -> None:
            seen.extend([event] if isinstance(event, CandidateMeasured) and machine.opened else [])
            if len(seen) == count:
                scope.cancel()

        await tune(machine=machine, journal=journal, on_event=listen, **options)
    assert scope.cancelled_caught


async def test_likely_losers_are_skipped_under_a_budget_and_tried_without_one() -> None:
    script = Script(latency_ms=lambda c: 1.0 + c["x"], facts=heavy)
    run = await finish(FakeMachine(12, script), budget=10, strategy="exhaustive")
    assert run.measured() == [0, 2, 4, 6, 8]
    assert all(e.likely and e.reason.startswith("likely: 512 registers") for e in run.of(CandidatePruned))
    assert [(one.count, one.reason[:6]) for one in run.result.untried] == [(5, "likely"), (2, "the bu")]
    assert run.result.audited is not None and (run.result.audited.skipped, run.result.audited.tried) == (5, 0)
    whole = await finish(FakeMachine(12, script), strategy="exhaustive")
    assert len(whole.measured()) == 12 and whole.result.untried == () and whole.result.audited is None


async def test_where_all_are_likely_losers_they_are_tried() -> None:
    script = Script(facts=lambda c: StaticFacts(accumulators=512))
    run = await finish(FakeMachine(12, script), budget=4, strategy="exhaustive")
    assert len(run.measured()) == 4


async def test_an_audit_tells_how_often_the_guess_was_wrong(tmp_path: Path) -> None:
    """All skipped ones are the fastest here: three of them are measured, after all others, and one wins."""
    script = Script(latency_ms=lambda c: 1.0 if c["x"] % 2 else 5.0, facts=heavy)
    options: dict[str, Any] = {"budget": 16, "strategy": "exhaustive", "audit": True}
    run = await finish(FakeMachine(20, script), journal=tmp_path / "j", **options)
    audited = run.result.audited
    assert audited is not None
    assert (audited.skipped, audited.tried, audited.wrong, audited.near) == (8, 3, 3, 3)
    last = [e.index for e in run.of(CandidateMeasured)][-3:]
    assert all(index % 2 for index in last) and run.result.best_index in last
    told = summary(replay(tmp_path / "j"))
    assert told["audited"] == {"skipped": 8, "tried": 3, "wrong": 3, "near": 3, "missing": ""}
    assert sum(one["count"] for one in told["untried"]) == 20 - 8 - 3


async def test_an_interrupted_audit_goes_on_with_the_same_sample(tmp_path: Path) -> None:
    script = Script(latency_ms=lambda c: 1.0 if c["x"] % 2 else 5.0, facts=heavy)
    options: dict[str, Any] = {"budget": 16, "strategy": "exhaustive", "audit": 0.5, "compile": ONE}
    whole = await tune(machine=FakeMachine(20, script), journal=tmp_path / "whole", **options)
    await until_measured(9, tmp_path / "part", FakeMachine(20, script), **options)
    again = await resume(tmp_path / "part", machine=FakeMachine(20, script))
    assert [r.index for r in again.records if r.status == "measured"] == [
        r.index for r in whole.records if r.status == "measured"
    ]
    assert again.audited == whole.audited and again.audited is not None and again.audited.tried == 4


async def test_a_block_that_waits_for_registers_for_ever_is_pruned() -> None:
    script = Script(facts=lambda c: StaticFacts(lacking_registers=1024 if c["x"] == 1 else 0))
    run = await finish(FakeMachine(4, script))
    assert [(e.index, e.likely) for e in run.of(CandidatePruned)] == [(1, False)]
    assert "setmaxnreg" in run.result.untried[0].reason
