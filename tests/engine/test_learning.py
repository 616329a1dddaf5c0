"""Runs whose strategy learns: asked as devices answer, gone on with, and ended where it goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atune import TuneResult, UsageError, resume, tune
from atune.errors import StrategyError
from atune.journal.events import CandidateProposed, Event
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.model.settings import CompileSettings
from atune.search.interface import Searched
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

CONFIGS = [{"tile": 16 << t, "stages": s, "order": o} for t in range(5) for s in range(5) for o in ("row", "column")]


def latency(config: dict[str, Any]) -> float:
    return 1.0 + abs(config["tile"].bit_length() - 8) + 0.5 * abs(config["stages"] - 3) + (config["order"] == "row")


def fake(workers: int = 3, **script: Any) -> FakeMachine:
    return FakeMachine(
        CONFIGS, Script(latency_ms=latency, **{"fails": {3: "timeout", 9: "compile"}, **script}), workers=workers
    )


class Own:
    """A user's strategy: in order, remembering what it was told and how many were outstanding at most."""

    name = "own"

    def __init__(self, wrong_at: int | None = None) -> None:
        self.wrong_at = wrong_at
        self.asked: list[int] = []
        self.told: dict[int, tuple[float | None, str]] = {}
        self.most = 0
        self.searched: Searched | None = None

    def begin(self, searched: Searched) -> None:
        self.searched = searched

    def ask(self) -> int | None:
        assert self.searched is not None
        if len(self.asked) == self.wrong_at:
            return self.asked[0]
        left = [index for index in self.searched.configs if index not in self.asked]
        if not left:
            return None
        self.asked.append(left[0])
        self.most = max(self.most, len(self.asked) - len(self.told))
        return left[0]

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        self.told[index] = latency_ms, reason


@pytest.mark.parametrize("name", ["local", "evolution", "forest"])
async def test_a_run_with_a_strategy_that_learns_ends_with_its_budget(tmp_path: Path, name: str) -> None:
    result = await tune(machine=fake(), strategy=name, budget="40%", journal=tmp_path / "j")
    assert len(result.records) == 20 and result.header is not None and result.header.strategy == name
    heard = [e.heard for e in read(tmp_path / "j") if isinstance(e, CandidateProposed)]
    assert heard[0] == 0 and heard == sorted(heard) and len(set(heard)) > 3


async def test_without_a_name_a_budget_has_the_forest_and_none_has_all(tmp_path: Path) -> None:
    for budget, name in ((20, "forest"), (None, "exhaustive"), (50, "exhaustive"), (5, "random")):
        result = await tune(machine=fake(), budget=budget)
        assert result.header is not None and result.header.strategy == name


async def test_a_strategy_of_the_users_own_is_asked_two_ahead_of_each_worker_and_told_all() -> None:
    own = Own()
    script = {"code_key": lambda c: "same" if c["tile"] == 16 and c["stages"] == 4 else str(c), "fails": {3: "timeout"}}
    await tune(machine=fake(3, **script), strategy=own)
    assert own.asked == list(range(50)) and sorted(own.told) == own.asked
    assert own.most == 6
    assert (
        own.told[3] == (None, "timeout")
        and own.told[9] == (None, "duplicate")
        and own.told[8][0] == latency(CONFIGS[8])
    )


@pytest.mark.parametrize("group_size", [None, 1, 16])
async def test_whatever_is_proposed_is_compiled_while_the_strategy_waits(group_size: int | None) -> None:
    settings = CompileSettings(group_size=group_size)
    result = await tune(machine=fake(1), strategy="local", compile=settings)
    assert not result.remaining and result.measured == 48


async def test_a_strategy_that_goes_wrong_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match=r"strategy 'own': ask.* returned 0 a second time"):
        await tune(machine=fake(), strategy=Own(wrong_at=20), journal=tmp_path / "j")
    assert replay(tmp_path / "j").measured >= 10
    result = await resume(tmp_path / "j", machine=fake(), strategy=Own())
    assert not result.remaining


async def test_a_run_of_the_users_own_strategy_does_not_go_on_without_it(tmp_path: Path) -> None:
    await tune(machine=fake(), strategy=Own(), budget=10, journal=tmp_path / "j")
    with pytest.raises(UsageError, match="strategy 'own' is unknown"):
        await resume(tmp_path / "j", machine=fake(), budget=20)


@pytest.mark.parametrize("name", ["local", "evolution", "forest"])
async def test_a_run_that_goes_on_asks_what_its_past_asked(tmp_path: Path, name: str) -> None:
    """The strategy is told again when it was told: were it not, it would ask for others, before any new one."""
    journal = tmp_path / "j"
    await tune(machine=fake(), strategy=name, budget=20, seed=4, journal=journal)
    before = proposals(read(journal))
    result: TuneResult = await resume(journal, machine=fake(), budget=30)
    after = proposals(read(journal))
    assert after[:20] == before and len(set(after)) == 30 == len(result.records)


async def test_a_journal_goes_on_with_its_own_strategy_whatever_is_the_default(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    await tune(machine=fake(), journal=journal, strategy="exhaustive", budget=12)
    result = await tune(machine=fake(), journal=journal, budget=24)
    assert proposals(read(journal)) == list(range(24)) and result.header is not None
    assert result.header.strategy == "exhaustive"


def proposals(events: list[Event] | Any) -> list[int]:
    return [e.index for e in events if isinstance(e, CandidateProposed)]
