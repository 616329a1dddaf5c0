"""Runs over spaces of more than 100,000 points: what the seed draws is searched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_runs import copying, cut_before, of_kind

from atune import resume, tune
from atune.errors import JournalError, SpaceError
from atune.journal.events import CandidateProposed, RunStarted, Warned
from atune.journal.reader import replay
from atune.model.space import Space
from atune.testing import FakeMachine, Script
from atune.workload import workload

pytestmark = pytest.mark.anyio

DIGITS = {f"d{i}": list(range(10)) for i in range(9)}
N = 3000


@pytest.fixture(autouse=True)
def small_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "LARGE", N)


def fits(d0: int, d1: int) -> bool:
    return d0 <= d1


def far(config: Mapping[str, Any]) -> int:
    """Return how far a point is from the best, by steps along the axes."""
    return sum(abs(value - 4) for value in config.values())


def large(where: Any = fits, axes: Any = DIGITS, target: str = "c", **script: Any) -> FakeMachine:
    """Return a machine whose prior, if the target has one, is right."""
    scripted = Script(**{"facts": lambda c: copying(far(c)), "latency_ms": lambda c: 1.0 + far(c), **script})
    return FakeMachine(Space(axes, where=where), scripted, target=target, workers=1)


def proposed(journal: Path) -> list[tuple[int, str]]:
    return [(e.index, e.key) for e in of_kind(journal, CandidateProposed)]


@pytest.mark.parametrize("strategy", ["exhaustive", "bayesian", None])
async def test_a_billion_points_are_tuned_under_a_budget(tmp_path: Path, strategy: str | None) -> None:
    result = await tune(machine=large(), budget=40, strategy=strategy, journal=tmp_path / "j")
    assert result.measured == 40 and result.total == N
    assert all(record.config["d0"] <= record.config["d1"] for record in result.records)
    assert replay(tmp_path / "j").best_config == result.best_config
    [header] = of_kind(tmp_path / "j", RunStarted)
    assert (header.total, header.points) == (N, 10**9)
    assert any("has 1,000,000,000 points: the run searches 3,000" in e.message for e in of_kind(tmp_path / "j", Warned))


async def test_the_seed_alone_decides_what_is_drawn(tmp_path: Path) -> None:
    tried = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        await tune(machine=large(), budget=30, strategy="random", seed=seed, journal=tmp_path / name)
        tried.append(proposed(tmp_path / name))
    assert tried[0] == tried[1] and not {key for _, key in tried[0]} & {key for _, key in tried[2]}


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "bayesian"])
async def test_a_resumed_run_draws_the_same_and_tries_nothing_twice(tmp_path: Path, strategy: str) -> None:
    journal = tmp_path / "j"
    await tune(machine=large(), budget=24, strategy=strategy, seed=3, journal=journal)
    whole = proposed(journal)
    cut_before(journal, 12)
    result = await resume(journal, machine=large())
    assert result.measured == 24 == len(set(proposed(journal))) and proposed(journal)[:12] == whole[:12]
    assert strategy == "bayesian" or proposed(journal) == whole
    assert (await resume(journal, machine=large(), budget=30)).measured == 30


async def test_other_constraints_are_another_space(tmp_path: Path) -> None:
    await tune(machine=large(), budget=5, journal=tmp_path / "j")
    for machine in (large(where=()), large(axes={**DIGITS, "d8": list(range(11))}), large(axes={"d0": [1], "d1": [2]})):
        with pytest.raises(JournalError, match=r"the journal records another space: .* takes this one as advice"):
            await resume(tmp_path / "j", machine=machine, budget=10)


def few(d0: int, d1: int, d2: int, d3: int, d4: int) -> bool:
    return (d0, d1, d2, d3) == (7, 7, 7, 7) and d4 < 4


async def test_constraints_may_leave_few_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {name: DIGITS[name] for name in list(DIGITS)[:5]} | {"d5": [0, 1]}
    result = await tune(machine=large(few, axes), journal=tmp_path / "j")
    assert (result.measured, result.total, result.remaining) == (8, 8, 0)
    monkeypatch.setattr(workload, "MOST_LOOKS", 1000)
    for options in ({}, {"d6": list(range(100))}):
        with pytest.raises(SpaceError, match="Space is empty: no configuration satisfies the constraints"):
            await tune(machine=large(lambda d0: False, axes | options), budget=10)
