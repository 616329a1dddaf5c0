"""Runs with a prior: what is surveyed before the first proposal, what that costs, and what a run that goes on has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from fake_runs import copying, cut_before, of_kind

from atune import resume, tune
from atune.journal.events import CandidateProposed, RunStarted, SpaceSurveyed
from atune.journal.reader import read
from atune.model.artifact import StaticFacts
from atune.model.settings import Budget
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

N = 60
BEST = [37, 12, 55, 3, 20, 41, 8, 30, 16, 49]
"""Candidates in the order of the prior; all others come later."""


def facts(config: Mapping[str, Any]) -> StaticFacts:
    return copying(BEST.index(config["x"]) if config["x"] in BEST else 20 + config["x"])


def fake(target: str = "sm_90a", default: int | None = None, workers: int = 3, **script: Any) -> FakeMachine:
    script = {"facts": facts, "latency_ms": lambda c: 1.0 + c["x"] % 7, **script}
    return FakeMachine(N, Script(**script), target=target, default=default, workers=workers)


def proposed(events: Any) -> list[int]:
    return [e.index for e in events if isinstance(e, CandidateProposed) and not e.surveyed]


# ---- what is proposed


async def test_few_candidates_are_the_default_and_the_priors_first(tmp_path: Path) -> None:
    result = await tune(machine=fake(default=44), budget=4, journal=tmp_path / "j")
    tried = proposed(read(tmp_path / "j"))
    assert tried[:2] == [44, BEST[0]] and len(tried) == 4  # what follows may depend on their outcomes
    assert result.header is not None and result.header.strategy == "bayesian" and result.default is not None


async def test_all_are_surveyed_before_the_first_is_lowered_on_every_worker(tmp_path: Path) -> None:
    machine = fake()
    await tune(machine=machine, budget=14, strategy="bayesian", journal=tmp_path / "j")
    assert proposed(read(tmp_path / "j"))[:2] == BEST[:2]
    assert sorted(index for chunk in machine.elaborated for index in chunk) == list(range(N))
    assert machine.most_at_once["elaborate"] == 3
    [surveyed] = of_kind(tmp_path / "j", SpaceSurveyed)
    assert surveyed.indices == tuple(range(N)) and surveyed.seq < of_kind(tmp_path / "j", CandidateProposed)[0].seq
    order = sorted(surveyed.indices, key=lambda index: surveyed.prior[index])
    assert order[: len(BEST)] == BEST and not surveyed.facts  # all can run


@pytest.mark.parametrize(
    ("target", "options", "strategy"),
    [
        ("sm_90a", {"budget": 4, "prior": False}, "random"),
        ("c", {"budget": 4}, "random"),
        ("sm_90a", {}, "exhaustive"),
        ("sm_90a", {"budget": 14, "strategy": "random"}, "random"),
    ],
)
async def test_nothing_is_surveyed_where_nobody_would_use_it(target: str, options: Any, strategy: str) -> None:
    machine = fake(target)
    result = await tune(machine=machine, **options)
    assert not machine.elaborated and result.header is not None and result.header.strategy == strategy


def too_large(config: Mapping[str, Any]) -> StaticFacts:
    """Return facts of which the prior's six best, and all from 40 on, need more shared memory than a block may have."""
    large = config["x"] in BEST[:6] or config["x"] >= 40
    return msgspec.structs.replace(facts(config), smem_bytes=300_000 if large else 1000)


@pytest.mark.parametrize("strategy", ["prior", "bayesian"])
async def test_what_cannot_run_comes_after_all_others_but_the_default(tmp_path: Path, strategy: str) -> None:
    unfit = {x for x in range(N) if x in BEST[:6] or x >= 40}
    machine = fake(facts=too_large, default=44)
    await tune(machine=machine, strategy=strategy, budget=N - len(unfit) + 1, journal=tmp_path / "j")
    asked = proposed(read(tmp_path / "j"))
    assert asked[0] == 44 and {*asked[1:]} == {*range(N)} - unfit
    await resume(tmp_path / "j", machine=fake(facts=too_large, default=44), budget="100%")
    assert {*proposed(read(tmp_path / "j"))[len(asked) :]} == unfit - {44}


def many(**script: Any) -> FakeMachine:
    """Return more candidates than are taken in the space's order without a budget."""
    script = {"facts": facts, "latency_ms": lambda c: 1.0 + c["x"] % 7, **script}
    return FakeMachine(2 * N, Script(**script), target="sm_90a", workers=3)


async def test_without_a_budget_all_are_tried_and_the_priors_first(tmp_path: Path) -> None:
    result = await tune(machine=many(), journal=tmp_path / "j")
    assert result.header is not None and result.header.strategy == "exhaustive" and result.measured == 2 * N
    order = proposed(read(tmp_path / "j"))
    assert order[: len(BEST)] == BEST
    assert sorted(order) == list(range(2 * N)) and len(of_kind(tmp_path / "j", SpaceSurveyed)) == 1


# ---- what goes wrong in it


async def test_a_candidate_that_cannot_be_elaborated_has_failed_and_costs_no_evaluation(tmp_path: Path) -> None:
    journal, broken = tmp_path / "j", BEST[0]
    fails = {broken: ("elaborate", "lower")}
    result = await tune(machine=fake(fails=fails), budget=4, strategy="prior", journal=journal)
    assert result.measured == 4 and proposed(read(journal)) == BEST[1:5]
    [failure] = result.failures
    assert (failure.index, failure.kind, failure.config) == (broken, "lower", {"x": broken})
    assert "scripted to fail" in failure.message
    later = fake()
    result = await resume(journal, machine=later, budget=8)
    assert proposed(read(journal)) == BEST[1:9] and not later.elaborated and result.failed == 1


async def test_an_elaboration_that_hangs_is_ended_and_harms_its_candidate_alone(tmp_path: Path) -> None:
    machine = fake(hangs={5: "elaborate"})
    result = await tune(machine=machine, budget=4, strategy="prior", journal=tmp_path / "j")
    assert [(r.index, r.kind) for r in result.failures] == [(5, "timeout")]
    [surveyed] = of_kind(tmp_path / "j", SpaceSurveyed)
    assert set(surveyed.indices) == set(range(N)) - {5} and proposed(read(tmp_path / "j")) == BEST[:4]


async def test_a_budget_in_seconds_bounds_the_survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no seconds the share is none: nothing is known, and the run goes on without."""
    monkeypatch.setattr("atune.engine.proposing.SHARE_OF_TIME", 0.0)
    machine = fake()
    result = await tune(machine=machine, budget=Budget(seconds=3600, candidates=12), journal=tmp_path / "j")
    assert not machine.elaborated and result.measured == 12
    assert of_kind(tmp_path / "j", SpaceSurveyed)[0].indices == ()


# ---- going on


@pytest.mark.parametrize("strategy", ["prior", "bayesian"])
async def test_a_run_that_goes_on_asks_the_same_without_elaborating_again(tmp_path: Path, strategy: Any) -> None:
    options = {"strategy": strategy, "budget": 24, "seed": 3}
    await tune(machine=fake(workers=1), **options, journal=tmp_path / "whole")
    whole = proposed(read(tmp_path / "whole"))
    journal = tmp_path / "cut"
    journal.write_bytes((tmp_path / "whole").read_bytes())
    cut_before(journal, 3)
    machine = fake(workers=1)
    await resume(journal, machine=machine)
    assert not machine.elaborated and len(of_kind(journal, SpaceSurveyed)) == 1
    again = proposed(read(journal))
    assert again[:3] == whole[:3] and len(again) == 24 and (strategy != "prior" or again == whole)


async def test_stopping_ends_the_survey_and_the_run(tmp_path: Path) -> None:
    """Nothing is proposed any more, and the devices are not waited for in vain."""
    from atune import NoWinner, Tuner

    machine = fake(elaborate_s=5.0)
    with anyio.fail_after(20), pytest.raises(NoWinner):
        async with Tuner(machine=machine, budget=14, journal=tmp_path / "j") as tuner:
            async for event in tuner.events():
                if isinstance(event, RunStarted):
                    tuner.stop()
            await tuner.result()
    assert not proposed(read(tmp_path / "j")) and len(machine.elaborated) <= 3
