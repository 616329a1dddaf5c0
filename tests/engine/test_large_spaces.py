"""Runs over spaces that are too large to list: under a budget, resumed, and to their end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from atune.api.resume import resume
from atune.api.tuner import tune
from atune.engine import aside, engine, proposals
from atune.errors import JournalError, SpaceError
from atune.journal.events import CandidateMeasured, CandidateProposed, Event, RunStarted, Warned
from atune.journal.merge import merge
from atune.journal.replay import replay
from atune.journal.writer import read
from atune.model.space import LARGE, Space
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

DIGITS = {f"d{i}": list(range(10)) for i in range(9)}
SCRIPT = Script(latency_ms=lambda c: 1.0 + sum(abs(v - 4) for v in c.values()) / 10)


def fits(d0: int, d1: int) -> bool:
    return d0 <= d1


def fake(where: Any = (), axes: Any = DIGITS, **options: Any) -> FakeMachine:
    return FakeMachine(Space(axes, where=where), SCRIPT, **options)


def proposed(journal: Path) -> list[tuple[int, str]]:
    return [(e.index, e.key) for e in read(journal) if isinstance(e, CandidateProposed)]


async def until_measured(count: int, journal: Path, machine: FakeMachine, **options: Any) -> None:
    """Run until so many are measured in this part, then cancel."""
    seen: list[Event] = []
    with anyio.CancelScope() as scope:

        def listen(event: Event) -> None:
            seen.extend([event] if isinstance(event, CandidateMeasured) and machine.opened else [])
            if len(seen) == count:
                scope.cancel()

        await tune(machine=machine, journal=journal, on_event=listen, **options)
    assert scope.cancelled_caught


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
async def test_a_budget_of_a_billion_points_looks_few_of_them_up(tmp_path: Path, strategy: str) -> None:
    machine = fake(fits)
    result = await tune(machine=machine, budget=100, strategy=strategy, journal=tmp_path / "j")
    assert result.measured == 100 and result.total == 10**9
    assert len(set(machine.looked_up)) == len(machine.looked_up) < 1000
    assert all(record.config["d0"] <= record.config["d1"] for record in result.records)
    assert replay(tmp_path / "j").best_config == result.best_config


async def test_the_seed_alone_decides_what_a_budget_tries(tmp_path: Path) -> None:
    tried = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        await tune(machine=fake(fits), budget=30, strategy="random", seed=seed, journal=tmp_path / name)
        tried.append(proposed(tmp_path / name))
    assert tried[0] == tried[1] != tried[2]


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
async def test_an_interrupted_run_goes_on_as_the_uninterrupted_one(tmp_path: Path, strategy: str) -> None:
    await tune(machine=fake(fits), budget=40, strategy=strategy, seed=3, journal=tmp_path / "whole")
    for part in (7, 5):
        journal, options = tmp_path / "part", {"budget": 40, "strategy": strategy, "seed": 3}
        await until_measured(part, journal, fake(fits), **options)
    result = await resume(journal, machine=fake(fits))
    assert proposed(journal) == proposed(tmp_path / "whole")
    measured = [e.index for e in read(journal) if isinstance(e, CandidateMeasured)]
    assert sorted(measured) == sorted(index for index, _ in proposed(journal))
    assert result.best_config == replay(tmp_path / "whole").best_config


async def test_a_finished_budget_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    await tune(machine=fake(fits), budget=25, strategy="random", journal=tmp_path / "whole")
    await tune(machine=fake(fits), budget=10, strategy="random", journal=tmp_path / "j")
    result = await resume(tmp_path / "j", machine=fake(fits), budget=25)
    assert result.measured == 25 and proposed(tmp_path / "j") == proposed(tmp_path / "whole")


def few(d0: int, d1: int, d2: int, d3: int, d4: int) -> bool:
    return (d0, d1, d2, d3) == (7, 7, 7, 7) and d4 < 4


async def test_a_large_space_that_holds_few_ends_and_tells_their_number(tmp_path: Path) -> None:
    """Its points are counted only once all of them were looked at; going on finds nothing left."""
    axes = {name: DIGITS[name] for name in list(DIGITS)[:5]} | {"d5": [0, 1]}
    result = await tune(machine=fake(few, axes), budget=100, journal=tmp_path / "j")
    assert (result.measured, result.total, result.remaining) == (8, 8, 0)
    again = replay(tmp_path / "j")
    assert (again.total, again.remaining, again.finished) == (8, 0, True)
    machine = fake(few, axes)
    result = await resume(tmp_path / "j", machine=machine, budget=1000)
    assert result.measured == 8 and not machine.opened


async def test_constraints_that_refuse_everything_are_told_and_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "REFUSED_WORDS", 1000)
    events: list[Event] = []
    axes = {name: DIGITS[name] for name in list(DIGITS)[:5]} | {"d5": [0, 1]}
    with pytest.raises(SpaceError, match="Space is empty: no configuration satisfies the constraints"):
        await tune(machine=fake(lambda d0: False, axes), budget=10, on_event=events.append)
    told = [e.message for e in events if isinstance(e, Warned)]
    assert len(told) == 3 and all("constraints refused" in message for message in told)


async def test_stopping_ends_a_search_that_finds_nothing() -> None:
    """A time budget does, too: nobody waits until all points were refused."""
    with anyio.fail_after(60), pytest.raises(Exception, match="no candidate was tried"):
        await tune(machine=fake(lambda d0: False), budget="0.2s")


async def test_without_a_budget_the_start_says_what_that_means(tmp_path: Path) -> None:
    events: list[Event] = []
    await until_measured(5, tmp_path / "j", fake(fits))
    await until_measured(5, tmp_path / "j", machine := fake(fits))
    events = list(read(tmp_path / "j"))
    words = [e.message for e in events if isinstance(e, Warned) and "there is no budget" in e.message]
    assert len(words) == 1 and "1,000,000,000 points" in words[0] and "--budget 1000" in words[0]
    assert isinstance(events[1], Warned) and len(machine.looked_up) < 1000


async def test_other_axes_are_refused(tmp_path: Path) -> None:
    await until_measured(5, tmp_path / "j", fake(), budget=10)
    for axes in ({**DIGITS, "d8": list(range(11))}, {"d0": [1, 2]}):
        with pytest.raises(JournalError, match="too large to list, with other axes or lists"):
            await resume(tmp_path / "j", machine=fake(axes=axes), accept=["space"])


async def test_candidates_that_a_new_constraint_refuses_are_gone(tmp_path: Path) -> None:
    def tighter(d8: int) -> bool:
        return d8 % 2 == 0

    await tune(machine=fake(), strategy="exhaustive", budget=16, journal=tmp_path / "j")
    with pytest.raises(JournalError, match="8 candidates of the journal are no longer in the space"):
        await resume(tmp_path / "j", machine=fake(tighter), budget=20)
    result = await resume(tmp_path / "j", machine=fake(tighter), budget=20, accept=["space"])
    assert (result.measured, result.pruned) == (20, 8)


async def test_a_journal_whose_run_listed_the_space_goes_on_as_it_would_have(tmp_path: Path) -> None:
    """Versions before listed every space, whatever its size: with that order, and those indices."""
    space = Space(x=range(LARGE + 50), where=lambda x: x % 1000 == 7)
    configs = space.configs({})
    script = Script(latency_ms=lambda c: 1.0 + c["x"] / 1e6)
    options: dict[str, Any] = {"strategy": "random", "seed": 5, "budget": 60}
    await tune(machine=FakeMachine(configs, script), journal=tmp_path / "whole", **options)
    await until_measured(20, tmp_path / "j", FakeMachine(configs, script), **options)
    assert isinstance(header := next(iter(read(tmp_path / "j"))), RunStarted) and not header.large
    result = await resume(tmp_path / "j", machine=FakeMachine(space, script))
    assert result.measured == 60 and proposed(tmp_path / "j") == proposed(tmp_path / "whole")


async def test_two_journals_of_one_large_space_are_merged(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        await tune(machine=fake(fits), budget=20, strategy="random", seed=seed, journal=tmp_path / name)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    both = dict(proposed(tmp_path / "both"))
    assert both == dict(proposed(tmp_path / "a")) | dict(proposed(tmp_path / "b")) and len(both) == 40
    result = await resume(tmp_path / "both", machine=fake(fits), budget=50)
    assert result.measured == 50


async def test_long_spaces_are_planned_for_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    plan = engine.plan_new

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return plan(*arguments)

    monkeypatch.setattr(engine, "plan_new", noted)
    for count in (aside.AT_ONCE, aside.AT_ONCE + 1):
        await tune(machine=FakeMachine(count), strategy="exhaustive", budget=3)
    assert (threads[0] == threading.get_ident()) and threads[1] != threading.get_ident()
