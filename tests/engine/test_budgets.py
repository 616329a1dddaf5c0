"""What ends a run before all is tried, what it skips, and how that is audited and told."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from event_streams import Stream, timing
from fake_runs import finish

from atune import resume, tune
from atune.engine.plan import proposed as proposed_of
from atune.engine.strategies import _Continued
from atune.journal.events import CandidateMeasured, CandidateProposed, CandidatePruned, Event, RunStarted
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.journal.state import State
from atune.journal.writer import line_of
from atune.model.artifact import StaticFacts
from atune.model.candidate import config_key
from atune.model.grid import Grid
from atune.model.settings import CompileSettings
from atune.model.space import Space
from atune.reporting.summary import summary
from atune.search.choosing import make_order, make_strategy
from atune.search.interface import Searched, Strategy
from atune.search.spread import spread_places
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

ONE = CompileSettings(group_size=1)
AXES = {f"d{i}": list(range(10)) for i in range(7)}
GRID = Grid(AXES)


def heavy(config: dict[str, Any]) -> StaticFacts:
    return StaticFacts(accumulators=512 if config["x"] % 2 else 64)


def proposed(journal: Path) -> list[int]:
    return [e.index for e in read(journal) if isinstance(e, CandidateProposed)]


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


@pytest.mark.parametrize(("strategy", "budget"), [("forest", 60)])
async def test_a_strategy_that_learns_searches_a_space_too_large_to_list(
    tmp_path: Path, strategy: str, budget: int
) -> None:
    """It comes far below what as many random ones reach, and only to points that the constraints admit."""
    script = Script(latency_ms=lambda c: 1.0 + sum(abs(v - 4) for v in c.values()))
    space = Space(AXES, where=lambda d0, d1: d0 <= d1)
    options: dict[str, Any] = {"budget": budget, "seed": 1}
    found = await tune(machine=FakeMachine(space, script), strategy=strategy, journal=tmp_path / "j", **options)
    drawn = await tune(machine=FakeMachine(space, script), strategy="random", **options)
    assert found.measured == budget and all(r.config["d0"] <= r.config["d1"] for r in found.records)
    assert found.latency_ms is not None and drawn.latency_ms is not None
    assert found.latency_ms < drawn.latency_ms


def admitted(place: int) -> bool:
    return GRID.digits(place)[0] <= GRID.digits(place)[1]


def asked_next(strategy: Strategy) -> int:
    """Return what is asked for next of what the constraints admit, as a run asks."""
    while (place := strategy.ask()) is not None:
        if admitted(place):
            return place
    raise AssertionError("nothing is left")


@pytest.mark.parametrize("name", ["forest"])
async def test_a_search_of_a_large_space_goes_on_as_the_uninterrupted_one(name: str) -> None:
    """The journal has neither the points that constraints refused nor that they were asked for."""
    pool = {p: GRID.config(p) for p in islice(filter(admitted, spread_places(GRID, 3)), 200)}
    searched = Searched(pool, 3, 60, grid=GRID)
    stream, whole = Stream(total=GRID.size), make_strategy(name, searched)
    order = []
    for count in range(40):
        heard = stream.events[-1].seq
        order.append(place := asked_next(whole))
        config, ms = GRID.config(place), 1.0 + sum(abs(digit - 4) for digit in GRID.digits(place))
        stream.add(CandidateProposed, index=place, key=config_key(config), config=config, heard=heard)
        if count < 30:
            stream.add(CandidateMeasured, index=place, device="cpu", timing=timing(ms), checked=True)
            whole.tell(place, timing(ms).latency_ms)
    state = State()
    for event in stream.events:
        state.apply(event)
    again = _Continued(proposed_of(state), [make_strategy(name, searched)], state, refused=True)
    assert [asked_next(again) for _ in range(8)] == [asked_next(whole) for _ in range(8)]
    assert len(set(order) - pool.keys()) > 0 or name == "forest"


@pytest.mark.parametrize("strategy", ["forest"])
async def test_an_interrupted_search_of_a_large_space_tries_its_budget(tmp_path: Path, strategy: str) -> None:
    def machine() -> FakeMachine:
        return FakeMachine(Space(AXES, where=lambda d0, d1: d0 <= d1), workers=1)

    options: dict[str, Any] = {"budget": 50, "strategy": strategy, "seed": 3, "compile": ONE}
    await until_measured(30, tmp_path / "part", machine(), **options)
    before = proposed(tmp_path / "part")
    await resume(tmp_path / "part", machine=machine())
    tried = proposed(tmp_path / "part")
    assert tried[: len(before)] == before and len(set(tried)) == len(tried) == 50


async def test_a_journal_of_before_goes_on_in_its_order(tmp_path: Path) -> None:
    """Its header does not say that draws spread: they were plainly shuffled."""
    configs = [{"x": x, "y": y} for x in range(8) for y in range(8)]
    await until_measured(10, tmp_path / "j", FakeMachine(configs), strategy="random", seed=5, budget=40)
    spread = proposed(tmp_path / "j")
    header = next(iter(read(tmp_path / "j")))
    assert isinstance(header, RunStarted) and header.spread
    (tmp_path / "old").write_bytes(line_of(msgspec.structs.replace(header, spread=False)))
    await resume(tmp_path / "old", machine=FakeMachine(configs))
    order = make_order("random", 64, 5)
    plain = [order.ask() for _ in range(40)]
    assert proposed(tmp_path / "old") == plain and plain[: len(spread)] != spread


async def test_likely_losers_are_skipped_under_a_budget_and_tried_without_one() -> None:
    script = Script(latency_ms=lambda c: 1.0 + c["x"], facts=heavy)
    run = await finish(FakeMachine(12, script), budget=10, strategy="exhaustive")
    assert run.measured() == [0, 2, 4, 6, 8]
    assert all(e.likely and e.reason.startswith("likely: 512 registers") for e in run.of(CandidatePruned))
    assert [(one.count, one.reason[:6]) for one in run.result.untried] == [(5, "likely"), (2, "the bu")]
    assert run.result.audited is not None and (run.result.audited.skipped, run.result.audited.tried) == (5, 0)
    whole = await finish(FakeMachine(12, script), strategy="exhaustive")
    assert len(whole.measured()) == 12 and whole.result.untried == () and whole.result.audited is None


async def test_where_all_are_likely_losers_they_are_tried() -> None:
    script = Script(facts=lambda c: StaticFacts(accumulators=512))
    run = await finish(FakeMachine(12, script), budget=4, strategy="exhaustive")
    assert len(run.measured()) == 4


async def test_an_audit_tells_how_often_the_guess_was_wrong(tmp_path: Path) -> None:
    """All skipped ones are the fastest here: three of them are measured, after all others, and one wins."""
    script = Script(latency_ms=lambda c: 1.0 if c["x"] % 2 else 5.0, facts=heavy)
    options: dict[str, Any] = {"budget": 16, "strategy": "exhaustive", "audit": True}
    run = await finish(FakeMachine(20, script), journal=tmp_path / "j", **options)
    audited = run.result.audited
    assert audited is not None
    assert (audited.skipped, audited.tried, audited.wrong, audited.near) == (8, 3, 3, 3)
    last = [e.index for e in run.of(CandidateMeasured)][-3:]
    assert all(index % 2 for index in last) and run.result.best_index in last
    told = summary(replay(tmp_path / "j"))
    assert told["audited"] == {"skipped": 8, "tried": 3, "wrong": 3, "near": 3, "missing": ""}
    assert sum(one["count"] for one in told["untried"]) == 20 - 8 - 3


async def test_an_interrupted_audit_goes_on_with_the_same_sample(tmp_path: Path) -> None:
    script = Script(latency_ms=lambda c: 1.0 if c["x"] % 2 else 5.0, facts=heavy)
    options: dict[str, Any] = {"budget": 16, "strategy": "exhaustive", "audit": 0.5, "compile": ONE}
    whole = await tune(machine=FakeMachine(20, script), journal=tmp_path / "whole", **options)
    await until_measured(9, tmp_path / "part", FakeMachine(20, script), **options)
    again = await resume(tmp_path / "part", machine=FakeMachine(20, script))
    assert [r.index for r in again.records if r.status == "measured"] == [
        r.index for r in whole.records if r.status == "measured"
    ]
    assert again.audited == whole.audited and again.audited is not None and again.audited.tried == 4


async def test_a_block_that_waits_for_registers_for_ever_is_pruned() -> None:
    script = Script(facts=lambda c: StaticFacts(lacking_registers=1024 if c["x"] == 1 else 0))
    run = await finish(FakeMachine(4, script))
    assert [(e.index, e.likely) for e in run.of(CandidatePruned)] == [(1, False)]
    assert "setmaxnreg" in run.result.untried[0].reason
