"""Runs over spaces that are too large to list, advised by runs of small ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cache_entries import key

from atune import TuneResult, UsageError, resume, tune
from atune.journal.events import CandidateProposed
from atune.journal.reader import read
from atune.model.candidate import config_key
from atune.model.space import Space
from atune.testing import FakeMachine, Script
from atune.workers.storage.result_cache import ResultCache

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
def small_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.workload.listing.LARGE", 2000)


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
    [advised] = advice(journal)
    assert advised.ratios.keys() == set(map(config_key, HERE)) and advised.others
    first = asked(journal)
    assert sorted(latency(e.config) for e in first[:4]) == sorted(map(latency, HERE))[:4]
    assert len({e.key for e in first}) == 16
    assert latency({**advised.best, "tile": tuple(advised.best["tile"])}) == min(map(latency, HERE))


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_resumed_run_needs_no_other_journal(tmp_path: Path, strategy: str) -> None:
    warm, journal = await recorded(tmp_path / "there"), tmp_path / "here"
    await tune(machine=(machine := large()), strategy=strategy, warm=warm, budget=3, journal=journal)
    warm.unlink()
    await resume(journal, machine=machine, budget=16)
    first = asked(journal)
    assert len({e.key for e in first}) == 16
    best = sorted(HERE, key=latency)[:4]
    assert {config_key(config) for config in best} <= {e.key for e in first}


@pytest.mark.parametrize("configs", [LACKING, REFUSED])
async def test_what_is_of_no_use_is_refused(tmp_path: Path, configs: list[dict[str, Any]]) -> None:
    warm = await recorded(tmp_path / "there", configs)
    with pytest.raises(UsageError, match=f"none of the {len(configs)} configurations that were measured there is in"):
        await tune(machine=large(), warm=warm, budget=8, journal=tmp_path / "here")
    assert not (tmp_path / "here").exists()


async def test_the_result_cache_advises_a_large_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    options: dict[str, Any] = {"strategy": "random", "warm": "cache", "budget": 6}
    ResultCache().put(key(kernel="fake", problem={"M": 2}), read(await recorded(tmp_path / "refused", REFUSED)))
    result = await tune(machine=large(), **options)
    assert "constraints refuse all that the result cache has" in result.warnings[-1]
    ResultCache().put(key(kernel="fake", problem={"M": 3}), read(await recorded(tmp_path / "there")))
    await tune(machine=large(), **options, journal=tmp_path / "here")
    [advised] = advice(tmp_path / "here")
    assert advised.cached and sorted(map(latency, HERE))[:3] == [
        latency(e.config) for e in asked(tmp_path / "here")[:3]
    ]
