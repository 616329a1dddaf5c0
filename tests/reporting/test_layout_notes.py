"""What a summary, a page and `atune explain` say of repeated work, and of layouts that gain much."""

from __future__ import annotations

from pathlib import Path

import pytest

from atune.journal.result import Record
from atune.model.artifact import StaticFacts
from atune.model.layouts import Layouts, LoopFacts
from atune.reporting.explanation import facts_of, lines_of

UNEVEN = Path(__file__).parents[2] / "bench" / "results" / "layouts" / "uneven.jsonl"


def facts(slots: int, stores: str = "Out (global)") -> StaticFacts:
    return StaticFacts(layouts=Layouts(loops=(LoopFacts((512,), slots, redundant=slots - 4, stores=(stores,)),)))


def told(found: StaticFacts) -> str:
    return "\n".join(lines_of(facts_of(Record(index=0, key="k", config={}, status="measured", facts=found), "sm_90a")))


@pytest.mark.parametrize(("slots", "stores", "says"), [
    (64, "Out (global)", True), (64, "s (local.fragment)", False), (7, "Out (global)", False),
])  # fmt: skip
def test_repeated_work_is_told_of(slots: int, stores: str, says: bool) -> None:
    warned = "loop 0: each thread does 16 times its even share, and stores Out (global)"
    assert (f"warning    {warned}" in told(facts(slots, stores))) is says
