"""Runs with a prior: what is surveyed before the first proposal, and what a run that goes on has; where a run with the
budget ``auto`` ends; and spaces of more than 100,000 points, of which what the seed draws is searched."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from fake_runs import copying, cut_before, of_kind, proposed

from atune import NoWinner, Tuner, resume, tune
from atune.errors import JournalError
from atune.journal.events import CandidateProposed, RunFinished, RunStarted, SpaceSurveyed, Warned
from atune.journal.reader import replay
from atune.model.artifact import StaticFacts
from atune.model.settings import Budget
from atune.model.space import Space
from atune.reporting.summary import summary_text
from atune.testing import FakeMachine, Script
from atune.workload import workload

pytestmark = pytest.mark.anyio

N = 60
BEST = [37, 12, 55, 3, 20, 41, 8, 30, 16, 49]
"""Candidates in the order of the prior; all others come later."""


def facts(config: Mapping[str, Any]) -> StaticFacts:
    return copying(BEST.index(config["x"]) if config["x"] in BEST else 20 + config["x"])


def fake(target: str = "sm_90a", default: int | None = None, workers: int = 3, **script: Any) -> FakeMachine:
    script = {"facts": facts, "latency_ms": lambda c: 1.0 + c["x"] % 7, **script}
    return FakeMachine(N, Script(**script), target=target, default=default, workers=workers)


# ---- what is proposed


async def test_all_are_surveyed_before_the_first_is_lowered_and_few_are_the_default_and_the_priors_first(
    tmp_path: Path,
) -> None:
    machine = fake(default=44)
    result = await tune(machine=machine, budget=4, journal=tmp_path / "j")
    tried = proposed(tmp_path / "j")
    assert tried[:2] == [44, BEST[0]] and len(tried) == 4  # what follows may depend on their outcomes
    assert result.header is not None and result.header.strategy == "bayesian" and result.default is not None
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


async def test_kernels_that_differ_in_their_block_order_are_proposed_together(tmp_path: Path) -> None:
    def in_pairs(config: Mapping[str, Any]) -> StaticFacts:
        pair, ordered = divmod(config["x"], 2)
        one = copying(0)  # the estimates are all equal, and the seed decides between equal ones
        work = msgspec.structs.replace(one.work, block_order="rasterization2DRow 8" if ordered else "")
        return msgspec.structs.replace(one, source_bytes=pair, work=work)

    machine = FakeMachine(100, Script(facts=in_pairs, latency_ms=lambda c: 1.0 + c["x"] % 7), target="sm_90a")
    await tune(machine=machine, journal=tmp_path / "j")
    tried = proposed(tmp_path / "j")
    assert sorted(tried) == list(range(100)) and tried != sorted(tried)
    assert all(one // 2 == other // 2 for one, other in zip(tried[::2], tried[1::2], strict=True))


def too_large(config: Mapping[str, Any]) -> StaticFacts:
    """Return facts of which the prior's six best, and all from 40 on, need more shared memory than a block may have."""
    large = config["x"] in BEST[:6] or config["x"] >= 40
    return msgspec.structs.replace(facts(config), smem_bytes=300_000 if large else 1000)


@pytest.mark.parametrize("strategy", ["prior", "bayesian"])
async def test_what_cannot_run_comes_after_all_others_but_the_default(tmp_path: Path, strategy: str) -> None:
    unfit = {x for x in range(N) if x in BEST[:6] or x >= 40}
    machine = fake(facts=too_large, default=44)
    await tune(machine=machine, strategy=strategy, budget=N - len(unfit) + 1, journal=tmp_path / "j")
    asked = proposed(tmp_path / "j")
    assert asked[0] == 44 and {*asked[1:]} == {*range(N)} - unfit
    await resume(tmp_path / "j", machine=fake(facts=too_large, default=44), budget="100%")
    assert {*proposed(tmp_path / "j")[len(asked) :]} == unfit - {44}


def many(**script: Any) -> FakeMachine:
    """Return more candidates than are taken in the space's order without a budget."""
    script = {"facts": facts, "latency_ms": lambda c: 1.0 + c["x"] % 7, **script}
    return FakeMachine(2 * N, Script(**script), target="sm_90a", workers=3)


async def test_without_a_budget_all_are_tried_and_the_priors_first(tmp_path: Path) -> None:
    result = await tune(machine=many(), journal=tmp_path / "j")
    assert result.header is not None and result.header.strategy == "exhaustive" and result.measured == 2 * N
    order = proposed(tmp_path / "j")
    assert order[: len(BEST)] == BEST
    assert sorted(order) == list(range(2 * N)) and len(of_kind(tmp_path / "j", SpaceSurveyed)) == 1


# ---- what goes wrong in it


async def test_a_candidate_that_cannot_be_elaborated_has_failed_and_costs_no_evaluation(tmp_path: Path) -> None:
    journal, broken = tmp_path / "j", BEST[0]
    fails = {broken: ("elaborate", "lower")}
    result = await tune(machine=fake(fails=fails), budget=4, strategy="prior", journal=journal)
    assert result.measured == 4 and proposed(journal) == BEST[1:5]
    [failure] = result.failures
    assert (failure.index, failure.kind, failure.config) == (broken, "lower", {"x": broken})
    assert "scripted to fail" in failure.message
    later = fake()
    result = await resume(journal, machine=later, budget=8)
    assert proposed(journal) == BEST[1:9] and not later.elaborated and result.failed == 1


async def test_an_elaboration_that_hangs_is_ended_and_harms_its_candidate_alone(tmp_path: Path) -> None:
    machine = fake(hangs={5: "elaborate"})
    result = await tune(machine=machine, budget=4, strategy="prior", journal=tmp_path / "j")
    assert [(r.index, r.kind) for r in result.failures] == [(5, "timeout")]
    [surveyed] = of_kind(tmp_path / "j", SpaceSurveyed)
    assert set(surveyed.indices) == set(range(N)) - {5} and proposed(tmp_path / "j") == BEST[:4]


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
    whole, journal = proposed(tmp_path / "whole"), cut_before(tmp_path / "whole", 3, tmp_path / "cut")
    machine = fake(workers=1)
    await resume(journal, machine=machine)
    assert not machine.elaborated and len(of_kind(journal, SpaceSurveyed)) == 1
    again = proposed(journal)
    assert again[:3] == whole[:3] and len(again) == 24 and (strategy != "prior" or again == whole)


async def test_stopping_ends_the_survey_and_the_run(tmp_path: Path) -> None:
    """Nothing is proposed any more, and the devices are not waited for in vain."""
    machine = fake(elaborate_s=5.0)
    with anyio.fail_after(20), pytest.raises(NoWinner):
        async with Tuner(machine=machine, budget=14, journal=tmp_path / "j") as tuner:
            async for event in tuner.events():
                if isinstance(event, RunStarted):
                    tuner.stop()
            await tuner.result()
    assert not proposed(tmp_path / "j") and len(machine.elaborated) <= 3


# ---- the budget auto


MANY = 200
SCATTER = {index: random.Random(index).lognormvariate(0.0, 0.4) for index in range(MANY)}


def nearly(config: Mapping[str, Any]) -> StaticFacts:
    return copying(0.004 * (MANY - config["x"]))


def near(config: Mapping[str, Any]) -> float:
    """Return a latency about as the prior has it."""
    return 1.0 + 0.004 * (MANY - config["x"])


def far(config: Mapping[str, Any]) -> float:
    return 10.0 * SCATTER[config["x"]]


def judged(latency_ms: Any = near, target: str = "sm_90a", n: int = MANY, **script: Any) -> FakeMachine:
    return FakeMachine(n, Script(facts=nearly, latency_ms=latency_ms, **script), target=target, workers=3)


async def test_it_ends_once_what_is_left_is_hardly_better(tmp_path: Path) -> None:
    result = await tune(machine=judged(), budget="auto", journal=tmp_path / "j")
    [ended] = of_kind(tmp_path / "j", RunFinished)
    assert ended.reason == result.reason == "enough"
    asked = proposed(tmp_path / "j")
    assert asked[0] == MANY - 1 and min(asked) > MANY - 40 and len(asked) == 16
    assert result.header is not None and result.header.strategy == "bayesian"
    assert result.header.settings["budget"]["auto"]
    why = "none of the last 8 candidates was 2 % faster than the best before them"
    said = f"stopped early, because {why}; {MANY - len(asked)} were not tried"
    assert said in summary_text(result) and said in summary_text(replay(tmp_path / "j"))
    again = judged()
    await resume(tmp_path / "j", machine=again, budget="auto")
    assert proposed(tmp_path / "j") == asked and not again.elaborated


@pytest.mark.parametrize("count", [1, 7, 8, 10])
async def test_a_run_that_goes_on_ends_at_the_same(tmp_path: Path, count: int) -> None:
    options: dict[str, Any] = {"budget": "auto", "seed": 3, "strategy": "prior"}
    noisy = {"latency_ms": lambda c: near(c) * (1.05 if c["x"] % 2 else 1.15)}
    await tune(machine=judged(**noisy), **options, journal=tmp_path / "whole")
    whole, journal = proposed(tmp_path / "whole"), cut_before(tmp_path / "whole", count, tmp_path / "cut")
    assert len(whole) > 10
    result = await resume(journal, machine=judged(**noisy))
    assert proposed(journal) == whole and result.reason == "enough"


async def test_where_each_batch_brings_more_it_tries_a_tenth(tmp_path: Path) -> None:
    result = await tune(machine=judged(far), budget="auto", journal=tmp_path / "j")
    assert result.reason == "budget" and result.measured == 20
    assert "used up: auto tries at most a tenth of the candidates, or 16 if that is more" in summary_text(result)
    result = await resume(tmp_path / "j", machine=judged(far), budget="100%")
    assert result.measured == MANY and "auto" not in summary_text(result)


@pytest.mark.parametrize(("target", "options"), [("c", {}), ("sm_90a", {"prior": False}), ("c", {"pipeline": False})])
@pytest.mark.parametrize(("n", "most"), [(40, 16), (MANY, 20), (12, 12)])
async def test_where_nothing_tells_it_tries_a_tenth(target: str, options: Any, n: int, most: int) -> None:
    result = await tune(machine=judged(target=target, n=n), budget="auto", **options)
    assert result.measured == most and result.reason == ("budget" if n > most else "exhausted")
    told = "used up: auto tries at most a tenth of the candidates, or 16 if that is more"
    assert (told in summary_text(result)) == (n > most)


async def test_without_a_pipeline_it_tries_a_tenth() -> None:
    result = await tune(machine=judged(), budget="auto", pipeline=False)
    assert result.measured == MANY // 10


# ---- large spaces


DIGITS = {f"d{i}": list(range(10)) for i in range(9)}
DRAWN = 3000


@pytest.fixture(autouse=True)
def small_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "LARGE", DRAWN)


def fits(d0: int, d1: int) -> bool:
    return d0 <= d1


def steps(config: Mapping[str, Any]) -> int:
    """Return how far a point is from the best, by steps along the axes."""
    return sum(abs(value - 4) for value in config.values())


def large(where: Any = fits, axes: Any = DIGITS, target: str = "c", **script: Any) -> FakeMachine:
    """Return a machine whose prior, if the target has one, is right."""
    scripted = Script(**{"facts": lambda c: copying(steps(c)), "latency_ms": lambda c: 1.0 + steps(c), **script})
    return FakeMachine(Space(axes, where=where), scripted, target=target, workers=1)


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "bayesian"])
async def test_a_resumed_run_draws_the_same_and_tries_nothing_twice(tmp_path: Path, strategy: str) -> None:
    journal = tmp_path / "j"
    await tune(machine=large(), budget=24, strategy=strategy, seed=3, journal=journal)
    whole = proposed(journal)
    cut_before(journal, 12)
    result = await resume(journal, machine=large())
    assert result.measured == 24 == len(set(proposed(journal))) and proposed(journal)[:12] == whole[:12]
    assert all(record.config["d0"] <= record.config["d1"] for record in result.records)
    [header] = of_kind(journal, RunStarted)
    assert (header.total, header.points) == (DRAWN, 10**9)
    assert any("has 1,000,000,000 points, so the run searches 3,000" in e.message for e in of_kind(journal, Warned))
    assert strategy == "bayesian" or proposed(journal) == whole
    assert (await resume(journal, machine=large(), budget=30)).measured == 30


async def test_other_constraints_are_another_space(tmp_path: Path) -> None:
    await tune(machine=large(), budget=5, journal=tmp_path / "j")
    for machine in (large(where=()), large(axes={**DIGITS, "d8": list(range(11))}), large(axes={"d0": [1], "d1": [2]})):
        with pytest.raises(JournalError, match=r"the journal records another space: .* uses this one as advice"):
            await resume(tmp_path / "j", machine=machine, budget=10)
