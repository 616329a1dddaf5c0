"""A merged journal as a run that is resumed: what its strategy knows of the space, and of the past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atune import resume, tune
from atune.errors import UsageError
from atune.journal.events import CandidateProposed, SpaceSurveyed
from atune.journal.merge import merge
from atune.journal.reader import read
from atune.journal.writer import line_of
from atune.model.artifact import Access, BlockWork, StaticFacts
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio


def facts(config: dict[str, Any]) -> StaticFacts:
    """Candidates move the more bytes, the farther they are from the 40th."""
    work = BlockWork(reads=(Access(n_bytes=1e6 * (1 + abs(config["x"] - 40)), axes="x"),), threads=128)
    return StaticFacts(smem_bytes=0, threads=128, grid=(1000, 1, 1), accumulators=8, work=work)


def machine() -> FakeMachine:
    script = Script(facts=facts, latency_ms=lambda config: 1.0 + abs(config["x"] - 20) / 7)
    return FakeMachine(60, script, target="sm_90a", workers=1)


def proposed(journal: Path) -> set[int]:
    return {e.index for e in read(journal) if isinstance(e, CandidateProposed) and not e.surveyed}


def surveys(journal: Path) -> list[SpaceSurveyed]:
    return [event for event in read(journal) if isinstance(event, SpaceSurveyed)]


async def test_journals_that_agree_keep_their_survey_and_their_numbers(tmp_path: Path) -> None:
    journals = [tmp_path / name for name in ("first", "second", "third")]
    first = journals[0]
    await tune(machine=machine(), strategy="bayesian", budget=30, journal=first)
    await tune(machine=machine(), strategy="bayesian", budget=30, journal=journals[1], seed=5)
    await tune(machine=machine(), strategy="random", budget=30, journal=journals[2], prior=False)
    first.write_bytes(b"".join(map(line_of, read(first)[:-20])))  # as if its program had died
    merged = tmp_path / "merged"
    result = merge(journals, merged)
    [survey] = surveys(merged)
    assert survey.prior == surveys(first)[0].prior and not any("surveys" in warning for warning in result.warnings)
    tried = proposed(merged)
    assert tried == set.union(*map(proposed, journals))
    assert all(record.config == {"x": record.index} for record in result.records)
    resumed = machine()
    await resume(merged, machine=resumed, budget=len(tried) + 4)
    assert not resumed.elaborated and len(surveys(merged)) == 1


async def test_a_journal_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    await tune(machine=machine(), journal=tmp_path / "a.jsonl", budget=3)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    for again in ("a.jsonl", "./a.jsonl", "link.jsonl"):
        with pytest.raises(UsageError, match=r"merge: .*a\.jsonl is given twice"):
            merge([tmp_path / "a.jsonl", f"{tmp_path}/{again}"], tmp_path / "m.jsonl")
    assert not (tmp_path / "m.jsonl").exists()
