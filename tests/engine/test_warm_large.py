"""Runs over spaces that are too large to list, advised by runs of small ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cache_entries import key
from listening import Listening

from atune import TuneResult, UsageError, resume, tune
from atune.journal.events import CandidateProposed
from atune.journal.reader import read
from atune.model.candidate import config_key
from atune.model.grid import Grid
from atune.model.space import LARGE, Space
from atune.search.advice import MOST_PLACES
from atune.storage.result_cache import ResultCache
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

TILES = [(16, 32), (32, 16)]
AXES: dict[str, Any] = {**{f"d{i}": list(range(10)) for i in range(5)}, "tile": TILES}
STRATEGIES = ["exhaustive", "random", "forest", "prior"]


def config(d0: int, d1: int, tile: tuple[int, int] = (32, 16)) -> dict[str, Any]:
    return {"d0": d0, "d1": d1, "d2": 5, "d3": 5, "d4": 5, "tile": tile}


HERE = [config(4, d1, tile) for d1 in range(4, 10) for tile in TILES]
REFUSED = [config(5, d1) for d1 in range(5)]
LACKING = [config(4, 12), config(11, 12), config(4, 5, (64, 64))]


def fits(d0: int, d1: int) -> bool:
    return d0 <= d1


def latency(config: dict[str, Any]) -> float:
    return 1.0 + sum(abs(v - 4) for name, v in config.items() if name != "tile") / 10 + (config["tile"] == (16, 32))


def large(where: Any = fits) -> FakeMachine:
    return FakeMachine(Space(AXES, where=where), Script(latency_ms=latency), workers=1)


async def recorded(path: Path, configs: list[dict[str, Any]] = LACKING + REFUSED + HERE) -> Path:
    await tune(machine=FakeMachine(configs, Script(latency_ms=latency)), journal=path)
    return path


@pytest.fixture(autouse=True)
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.engine.pool.POOL", 128)


def asked(journal: Path) -> list[CandidateProposed]:
    return [e for e in read(journal) if isinstance(e, CandidateProposed)]


def advice(journal: Path) -> Any:
    header = TuneResult.from_events(read(journal)).header
    assert header is not None
    return header.advice


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_small_space_advises_a_large_one(tmp_path: Path, strategy: str) -> None:
    """What was best there comes first, without what the axes lack or constraints refuse."""
    warm, journal = await recorded(tmp_path / "there"), tmp_path / "here"
    await tune(machine=large(), strategy=strategy, warm=warm, budget=16, journal=journal)
    [told] = advice(journal)
    assert told.ratios.keys() == told.places.keys() == set(map(config_key, HERE))
    first = asked(journal)
    assert sorted(latency(e.config) for e in first[:4]) == sorted(map(latency, HERE))[:4]
    assert [told.places[e.key] for e in first[:4]] == [e.index for e in first[:4]] and len({e.key for e in first}) == 16
    assert latency({**told.best, "tile": tuple(told.best["tile"])}) == min(map(latency, HERE))


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_resumed_run_asks_the_same_without_the_other_journal(tmp_path: Path, strategy: str) -> None:
    """It is cut after its second proposal: what follows of the first eight depends on the advice alone."""
    warm, whole, cut = await recorded(tmp_path / "there"), tmp_path / "whole", tmp_path / "cut"
    await tune(machine=large(), strategy=strategy, warm=warm, budget=32, journal=whole)
    warm.unlink()
    lines = whole.read_bytes().splitlines(keepends=True)
    second = [n for n, event in enumerate(read(whole)) if isinstance(event, CandidateProposed)][1]
    cut.write_bytes(b"".join(lines[: second + 1]))
    await resume(cut, machine=large())
    again = [e.index for e in asked(cut)]
    assert again[:8] == [e.index for e in asked(whole)][:8] and len(set(again)) == 32


async def test_a_strategy_learns_from_all_that_was_measured_elsewhere(tmp_path: Path) -> None:
    """And after a resume from what constraints still admit."""
    warm, journal = await recorded(tmp_path / "there"), tmp_path / "here"
    first, second = Listening(), Listening()
    await tune(machine=large(), strategy=first, warm=warm, budget=5, journal=journal)
    known = {config_key(first.searched.configs[place]): ratio for place, ratio in first.searched.elsewhere.items()}
    fastest = min(map(latency, LACKING + REFUSED + HERE))
    assert known == {config_key(one): pytest.approx(latency(one) / fastest, abs=1e-4) for one in HERE}
    warm.unlink()
    tighter = large([fits, lambda tile: tile != (16, 32)])
    await resume(journal, machine=tighter, strategy=second, accept=["space"], budget=9)
    assert len(second.searched.elsewhere) == len(HERE) // 2
    assert second.searched.elsewhere.items() < first.searched.elsewhere.items()


async def test_only_the_best_of_many_are_looked_up(tmp_path: Path) -> None:
    fixed = {"d0": [4], "tile": [TILES[0]]}
    there = Space({**AXES, **fixed}).configs({})[: MOST_PLACES + 50]
    warm, machine = await recorded(tmp_path / "there", there), large(())
    await tune(machine=machine, strategy="exhaustive", warm=warm, budget=8, journal=tmp_path / "here")
    [told] = advice(tmp_path / "here")
    assert len(told.places) == MOST_PLACES < len(machine.looked_up) < MOST_PLACES + 50


async def test_what_is_of_no_use_is_refused(tmp_path: Path) -> None:
    listed = FakeMachine(Space([{**config(0, 9), "d1": x} for x in range(LARGE + 1)]))
    for configs, machine, words in (
        (LACKING, large(), "none of the 3 configurations that were measured there is in this space of 200,000"),
        (REFUSED, large(), "none of the 5 configurations that were measured there is in this space of 200,000"),
        (HERE, listed, "the space is a list of 100,001 configurations, .* or give axes in place"),
    ):
        warm = await recorded(tmp_path / "there", configs)
        with pytest.raises(UsageError, match=words):
            await tune(machine=machine, warm=warm, budget=8, journal=tmp_path / "here")
        assert not (tmp_path / "here").exists()
        warm.unlink()


async def test_the_result_cache_advises_a_large_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    options: dict[str, Any] = {"strategy": "random", "warm": "cache", "budget": 6}
    ResultCache().put(key(kernel="fake", problem={"M": 1}), read(await recorded(tmp_path / "lacking", LACKING)))
    result = await tune(machine=large(), **options)
    assert "the result cache has nothing of this kernel and space" in result.warnings[-1]
    ResultCache().put(key(kernel="fake", problem={"M": 2}), read(await recorded(tmp_path / "refused", REFUSED)))
    result = await tune(machine=large(), **options)
    assert "constraints refuse all that the result cache has" in result.warnings[-1]
    ResultCache().put(key(kernel="fake", problem={"M": 3}), read(await recorded(tmp_path / "there")))
    await tune(machine=large(), **options, journal=tmp_path / "here")
    [told] = advice(tmp_path / "here")
    assert told.cached and sorted(map(latency, HERE))[:3] == [latency(e.config) for e in asked(tmp_path / "here")[:3]]


def test_a_configuration_is_found_by_its_values() -> None:
    """True, 1 and 1.0 are three values; a journal has lists for tuples."""
    grid = Grid({"a": range(2, 10, 2), "b": (True, 1, 1.0), "c": ((1, 2), None)})
    for place in range(grid.size):
        assert grid.find(grid.config(place)) == place
    assert grid.find({"c": [1, 2], "b": 1, "a": 4}) == grid.place((1, 1, 0))
    for wrong in ({"a": 3}, {"a": 4.0}, {"b": 2}, {"c": (2, 1)}, {"d": 1}):
        assert grid.find({"a": 4, "b": 1, "c": None, **wrong}) is None
    assert grid.find({"a": 4, "b": 1}) is None
