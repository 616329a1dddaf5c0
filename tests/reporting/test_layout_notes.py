"""What a summary, a page and `atune explain` say of repeated work, and of layouts that gain much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_runs import finish

from atune import Space, layout
from atune.journal.reader import replay
from atune.journal.result import Record
from atune.model.artifact import StaticFacts
from atune.model.layouts import Layouts, LoopFacts
from atune.reporting.explanation import fact_lines
from atune.reporting.report import page_of
from atune.reporting.summary import layouts_line, summary_text
from atune.testing import FakeMachine, Script

UNEVEN = Path(__file__).parents[2] / "bench" / "results" / "layouts" / "uneven.jsonl"


def facts(slots: int, stores: str = "Out (global)") -> StaticFacts:
    return StaticFacts(layouts=Layouts(loops=(LoopFacts((512,), slots, redundant=slots - 4, stores=(stores,)),)))


def told(found: StaticFacts) -> str:
    return "\n".join(fact_lines(Record(index=0, key="k", config={}, status="measured", facts=found), "sm_90a"))


def test_a_run_whose_layouts_gained_much_says_so_and_how_to_see_why() -> None:
    result = replay(UNEVEN)
    [line] = [line for line in summary_text(result).splitlines() if line.startswith("layouts")]
    own = min(r.latency_ms for r in result.records if r.latency_ms and set(r.config.values()) & {"compiler"} and
              r.config["held"] == r.config["loop"] == "compiler")  # fmt: skip
    assert result.latency_ms is not None and f"{own / result.latency_ms:.3g} times faster" in line
    assert line.endswith(f"atune explain {UNEVEN} {result.best_index} 24")


@pytest.mark.anyio
@pytest.mark.parametrize(("slots", "stores", "says"), [
    (64, "Out (global)", True), (64, "s (local.fragment)", False), (7, "Out (global)", False),
])  # fmt: skip
async def test_a_winner_that_repeats_work_is_told_of(slots: int, stores: str, says: bool) -> None:
    script = Script(facts=lambda config: facts(slots, stores))
    run = await finish(FakeMachine(Space(x=[1, 2]), script))
    warned = "loop 0: each thread does 16 times its even share, and stores Out (global)"
    assert (warned in layouts_line(run.result)) is (warned in page_of(run.events)) is says
    assert (f"warning    {warned}" in told(facts(slots, stores))) is says


@pytest.mark.anyio
async def test_layouts_that_gain_little_are_not_told_of() -> None:
    space = Space(loop=layout.loops(2, 8))
    for gain, says in ((1.1, False), (3.0, True)):

        def latency(config: dict[str, Any], gain: float = gain) -> float:
            return gain if config["loop"] == "compiler" else 1.0

        run = await finish(FakeMachine(space, Script(latency_ms=latency)))
        assert ("3 times faster than the compiler's own" in layouts_line(run.result)) is says
