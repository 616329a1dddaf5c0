"""Merged journals as runs that go on: what their strategy knows of the space, and of the past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atune import resume, tune
from atune.journal.events import CandidateProposed, SpaceSurveyed
from atune.journal.merge import merge
from atune.journal.reader import read
from atune.journal.writer import line_of
from atune.model.artifact import Access, BlockWork, StaticFacts
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

N = 60


def fake(**script: Any) -> FakeMachine:
    """Return a machine of one worker whose candidates move the more, the farther they are from the 40th."""

    def facts(config: dict[str, Any]) -> StaticFacts:
        work = BlockWork(reads=(Access(n_bytes=1e6 * (1 + abs(config["x"] - 40)), axes="x"),), threads=128)
        return StaticFacts(smem_bytes=0, threads=128, grid=(1000, 1, 1), accumulators=8, work=work)

    scripted = Script(**{"facts": facts, "latency_ms": lambda c: 1.0 + abs(c["x"] - 20) / 7, **script})
    return FakeMachine(N, scripted, target="sm_90a", workers=1)


def proposed(journal: Path) -> list[int]:
    return [e.index for e in read(journal) if isinstance(e, CandidateProposed) and not e.surveyed]


def surveys(journal: Path) -> list[SpaceSurveyed]:
    return [event for event in read(journal) if isinstance(event, SpaceSurveyed)]


def cut_before(journal: Path, count: int) -> None:
    """Leave the journal as it was when the program died before its proposal number `count`."""
    events = list(read(journal))
    at = [number for number, event in enumerate(events) if isinstance(event, CandidateProposed)][count]
    journal.write_bytes(b"".join(map(line_of, events[:at])))


async def begun(journal: Path, *, cut: int | None = None, strategy: str = "forest", **options: Any) -> Path:
    await tune(machine=fake(), strategy=strategy, budget=30, journal=journal, **options)
    if cut is not None:
        cut_before(journal, cut)
    return journal


async def test_journals_that_agree_keep_their_survey_and_their_numbers(tmp_path: Path) -> None:
    first = await begun(tmp_path / "first", cut=12)
    second = await begun(tmp_path / "second", seed=5)
    third = await begun(tmp_path / "third", strategy="random", prior=False)
    result = merge([first, second, third], tmp_path / "merged")
    [survey] = surveys(tmp_path / "merged")
    assert survey.prior == surveys(first)[0].prior and not any("surveys" in said for said in result.warnings)
    assert set(proposed(tmp_path / "merged")) == {i for j in (first, second, third) for i in proposed(j)}
    assert all(record.config == {"x": record.index} for record in result.records)
    machine = fake()
    tried = set(proposed(tmp_path / "merged"))
    await resume(tmp_path / "merged", machine=machine, budget=len(tried) + 4)
    assert not machine.elaborated and len(surveys(tmp_path / "merged")) == 1
