"""Runs with the budget ``auto``: where they end, what they say of what is left, and how they go on."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_runs import copying, cut_before, of_kind

from atune import resume, tune
from atune.journal.events import CandidateProposed, RunFinished
from atune.journal.reader import replay
from atune.model.artifact import StaticFacts
from atune.reporting.summary import summary, summary_text
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

N = 200
SCATTER = {index: random.Random(index).lognormvariate(0.0, 0.4) for index in range(N)}


def facts(config: Mapping[str, Any]) -> StaticFacts:
    return copying(0.004 * (N - config["x"]))


def near(config: Mapping[str, Any]) -> float:
    """Return a latency about as the prior has it."""
    return 1.0 + 0.004 * (N - config["x"])


def far(config: Mapping[str, Any]) -> float:
    return 10.0 * SCATTER[config["x"]]


def fake(latency_ms: Any = near, target: str = "sm_90a", n: int = N, **script: Any) -> FakeMachine:
    return FakeMachine(n, Script(facts=facts, latency_ms=latency_ms, **script), target=target, workers=3)


def proposed(journal: Path) -> list[int]:
    return [event.index for event in of_kind(journal, CandidateProposed) if not event.surveyed]


async def test_it_ends_once_what_is_left_is_hardly_better(tmp_path: Path) -> None:
    result = await tune(machine=fake(), budget="auto", journal=tmp_path / "j")
    [ended] = of_kind(tmp_path / "j", RunFinished)
    assert ended.reason == result.reason == "enough" and ended.chance is not None and ended.chance < 0.05
    asked = proposed(tmp_path / "j")
    assert asked[0] == N - 1 and min(asked) > N - 40 and 8 <= len(asked) < 20
    assert result.header is not None and result.header.strategy == "bayesian"
    assert result.header.settings["budget"]["auto"] and summary(result)["chance"] == ended.chance
    said = f"enough is tried: the chance that one of the {N - len(asked)} left is 2 % faster is"
    assert said in summary_text(result) and said in summary_text(replay(tmp_path / "j"))
    again = fake()
    await resume(tmp_path / "j", machine=again, budget="auto")
    assert proposed(tmp_path / "j") == asked and not again.elaborated


@pytest.mark.parametrize("count", [1, 7, 8, 10])
async def test_a_run_that_goes_on_ends_at_the_same(tmp_path: Path, count: int) -> None:
    options: dict[str, Any] = {"budget": "auto", "seed": 3, "strategy": "prior"}
    noisy = {"latency_ms": lambda c: near(c) * (1.05 if c["x"] % 2 else 1.15)}
    await tune(machine=fake(**noisy), **options, journal=tmp_path / "whole")
    journal = tmp_path / "cut"
    journal.write_bytes((tmp_path / "whole").read_bytes())
    whole = proposed(journal)
    assert len(whole) > 10
    cut_before(journal, count)
    result = await resume(journal, machine=fake(**noisy))
    assert proposed(journal) == whole and result.reason == "enough"


async def test_where_the_prior_errs_it_tries_a_tenth_and_tells_the_chance(tmp_path: Path) -> None:
    result = await tune(machine=fake(far), budget="auto", journal=tmp_path / "j")
    assert result.reason == "budget" and result.measured == 20 and result.chance is not None and result.chance > 0.05
    assert f"used up: the chance that one of the {N - 20} left" in summary_text(result)
    result = await resume(tmp_path / "j", machine=fake(far), budget="100%")
    assert result.measured == N and result.chance is None and "is 2 % faster" not in summary_text(result)


@pytest.mark.parametrize(("target", "options"), [("c", {}), ("sm_90a", {"prior": False}), ("c", {"pipeline": False})])
@pytest.mark.parametrize(("n", "most"), [(40, 16), (N, 20), (12, 12)])
async def test_where_nothing_tells_it_tries_a_tenth(target: str, options: Any, n: int, most: int) -> None:
    result = await tune(machine=fake(target=target, n=n), budget="auto", **options)
    assert result.measured == most and result.reason == ("budget" if n > most else "exhausted")
    told = "without a prior, auto tries a tenth, and at least 16"
    assert (told in summary_text(result)) == (n > most) and result.chance is None


async def test_a_larger_budget_says_nothing_of_auto(tmp_path: Path) -> None:
    await tune(machine=fake(target="c"), budget="auto", journal=tmp_path / "j")
    result = await resume(tmp_path / "j", machine=fake(target="c"), budget="50%")
    assert result.measured == N // 2 and "auto" not in summary_text(result)


async def test_without_a_pipeline_it_tries_a_tenth_and_tells_the_chance() -> None:
    result = await tune(machine=fake(), budget="auto", pipeline=False)
    assert result.measured == N // 10 and result.chance is not None and result.chance < 0.05


async def test_the_first_limit_ends_it(tmp_path: Path) -> None:
    result = await tune(machine=fake(far), budget="auto,5", journal=tmp_path / "j")
    assert result.reason == "budget" and len(proposed(tmp_path / "j")) == 5
