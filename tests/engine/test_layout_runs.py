"""Runs that choose layouts: of each base configuration only those are compiled that lowering tells to be the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_runs import cut, finish

from atune import Space, layout, resume
from atune.errors import UsageError
from atune.journal.events import BuildFailed, CandidateProposed, CandidatePruned
from atune.journal.writer import write_journal
from atune.model.artifact import StaticFacts
from atune.model.layouts import CONTAINED, Layouts, LoopFacts
from atune.model.settings import Budget, CompileSettings
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

ONE = CompileSettings(layouts=1, workers=1)
SPACE = Space(x=[1, 2, 3], loop=layout.loops(2, 8))


def facts(config: dict[str, Any]) -> StaticFacts:
    """The compiler's own loop is done by all threads, and of the others the wider one does nothing twice."""
    replication, threads = {"compiler": (4, "f"), "vector2": (2, "3"), "vector8": (1, "1")}[config["loop"]]
    loop = LoopFacts((16,), 4 * replication, replication, 4 * replication - 4, threads=(threads,) * 5)
    return StaticFacts(layouts=Layouts(loops=(loop,)))


def machine(space: Space = SPACE, **script: Any) -> FakeMachine:
    return FakeMachine(space, Script(**{"facts": facts, "latency_ms": lambda c: float(c["x"]), **script}))


async def test_one_layout_of_each_configuration_is_compiled_and_the_rest_says_why() -> None:
    run = await finish(machine(), compile=ONE)
    assert run.measured() == [2, 5, 8] and run.result.best_config == {"x": 1, "loop": "vector8"}
    passed = {e.index: (e.instead, e.reason, e.likely) for e in run.of(CandidatePruned)}
    assert passed == {index: (index // 3 * 3 + 2, f"likely: {CONTAINED}", True) for index in (0, 1, 3, 4, 6, 7)}


async def test_layouts_of_the_same_code_are_one_alternative() -> None:
    same = {"vector2": "narrow", "vector8": "narrow"}
    found = machine(
        code_key=lambda c: f"{c['x']} {same.get(c['loop'], 'own')}",
        facts=lambda c: facts({"loop": "compiler" if c["loop"] == "compiler" else "vector8"}),
    )
    run = await finish(found, compile=ONE)
    assert run.result.measured == 3 and run.result.duplicates == 3 and run.result.pruned == 3


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "bayesian"])
async def test_a_budget_counts_base_configurations_whatever_the_strategy(strategy: str) -> None:
    run = await finish(machine(), compile=ONE, strategy=strategy, budget=Budget(candidates=2))
    assert len(run.measured()) == 2 and all(index % 3 == 2 for index in run.measured())
    assert [e.further_layout for e in run.of(CandidateProposed)].count(False) == 2


async def test_all_layouts_are_tried_where_no_chosen_one_works() -> None:
    run = await finish(machine(fails=dict.fromkeys((2, 5, 8), "mismatch")), compile=ONE)
    assert run.measured() == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize(
    ("strategy", "budget"), [("exhaustive", None), ("random", Budget(candidates=2)), ("bayesian", Budget(candidates=2))]
)
async def test_a_resumed_run_asks_and_chooses_as_the_uninterrupted_one(
    strategy: str, budget: Budget | None, tmp_path: Path
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    uncut = await finish(machine(), compile=ONE, journal=whole, strategy=strategy, budget=budget)
    for count in [*range(4, len(uncut.events) - 1, 7), len(uncut.events) - 1]:
        result = await resume(cut(whole, count, part), machine=machine(), budget=budget)
        assert [r.index for r in result.records if r.status == "measured"] == uncut.measured(), f"cut after {count}"
        assert {r.index: r.instead for r in result.records} == {r.index: r.instead for r in uncut.result.records}


async def test_a_resumed_run_tries_the_further_layouts_of_a_configuration_whose_first_failed(tmp_path: Path) -> None:
    """The run ended when its last configuration's first layout had failed, and the others were not proposed yet."""
    budget, failing = Budget(candidates=2), machine(fails={3: "lower"})
    uncut = await finish(failing, compile=ONE, strategy="exhaustive", budget=budget)
    end = next(event.seq for event in uncut.of(BuildFailed))
    left = [event for event in uncut.events if event.seq <= end and getattr(event, "index", None) not in (4, 5)]
    write_journal(str(tmp_path / "j"), [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(left)])
    result = await resume(tmp_path / "j", machine=failing, budget=budget)
    assert uncut.measured() == [record.index for record in result.records if record.status == "measured"] == [2, 5]


async def test_layouts_need_an_axis_of_layouts() -> None:
    with pytest.raises(UsageError, match=r"layouts=1: the space has no axis of layouts"):
        await finish(machine(Space(x=[1, 2], loop=["compiler"])), compile=ONE)
