"""Where a set's budget goes: shares by weight, and the winners of one problem that are measured on another."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from event_streams import Stream
from recording import Recording, read_recording
from simulate import simulate_seeds

import atune
from atune import Problems
from atune.engine.search.registry import make_strategy
from atune.frontends.sets import tuning
from atune.frontends.sets.budget import HELD_FROM, LEAST, lacking, rest, shares
from atune.frontends.sets.tuning import resume_set
from atune.journal.events import CandidateMeasured, RunResumed
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.journal.set_folder import TunedProblem
from atune.model.settings import Budget
from atune.reporting.sets.cover import cover
from atune.reporting.sets.regret import regret_matrix
from atune.testing import FakeMachine
from atune.workers.storage.result_key import result_key

ROOT = Path(__file__).parents[2]
FAST: dict[str, Any] = {
    "target": "c",
    "benchmark": atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3, n_final_limit=3),
}


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_one_on_average_and_never_admit_more_than_the_whole(seed: int) -> None:
    draw = random.Random(seed)
    weights = [math.exp(draw.gauss(0, 2)) for _ in range(draw.randint(1, 40))]
    found = shares(weights)
    assert math.fsum(found) == pytest.approx(len(weights)) and min(found) >= LEAST - 1e-9
    assert sorted(found) == [share for _, share in sorted(zip(weights, found, strict=True))]
    for each in range(1, 30):
        total = sum(Budget(candidates=each, share=share).most(1000) or 0 for share in shares(weights, each))
        assert total <= each * len(weights)


def test_equal_weights_share_equally_and_a_quarter_holds_one_back() -> None:
    assert shares([3.0] * 8) == [1.0] * 8 == shares([3.0] * 8, HELD_FROM - 1)
    assert [Budget(candidates=12, share=one).most(99) for one in shares([1.0] * 8, 12)] == [12] * 6 + [11] * 2
    assert shares([1, 100, 4]) == [0.5, 2.0, 0.5] and shares([1, 4]) == pytest.approx([2 / 3, 4 / 3])


@cache
def recorded(space: str) -> Recording:
    return read_recording(ROOT / "bench" / "spaces" / f"{space}.jsonl.xz")


def weighted_regret(counts: Sequence[int], spaces: Sequence[str], weights: Sequence[float], seed: int) -> float:
    """Return the weighted mean regret of random draws of so many candidates."""
    ends = []
    for space, count in zip(spaces, counts, strict=True):
        make = partial(make_strategy, "random")
        [trial] = simulate_seeds(recorded(space), make, budget=count, seeds=[seed])
        ends.append(trial.curve[-1] / recorded(space).best_ms - 1)
    return math.fsum(w * end for w, end in zip(weights, ends, strict=True)) / math.fsum(weights)


def test_shares_leave_less_weighted_regret_on_recorded_spaces() -> None:
    spaces = ("gemm_tall", "gemm_skinny", "gemm_odd", "gemm_unaligned", "dequant_gemm", "transpose")
    equal, shared = 0.0, 0.0
    for seed in range(15):
        draw = random.Random(seed)
        weights = [math.exp(draw.gauss(0, 1.5)) for _ in spaces]
        counts = [Budget(candidates=24, share=share).most(24**2) or 0 for share in shares(weights)]
        assert sum(counts) <= 24 * len(spaces)
        equal += weighted_regret([24] * len(spaces), spaces, weights, seed)
        shared += weighted_regret(counts, spaces, weights, seed)
    assert shared < 0.9 * equal


def problem(n: int, latencies: Mapping[int, float | None]) -> Result:
    """Return the result of a problem where each candidate of `latencies` was measured, or failed without one."""
    stream = Stream(total=10).ready()
    stream.events[0] = msgspec.structs.replace(stream.events[0], arguments={"n": n})
    for x, latency_ms in latencies.items():
        stream.candidate(x, *(() if latency_ms is None else (latency_ms,)), x=x)
    return Result.from_events(stream.finished().events)


def test_what_would_let_one_configuration_serve_all_is_lacking() -> None:
    results = [problem(1, {0: 1.0, 1: 5.0}), problem(2, {1: 5.0, 2: 1.0, 0: 1.02}), problem(4, {2: 1.0, 1: 5.0})]
    assert len(cover(regret_matrix(results)).configs) == 2
    assert lacking(results, [1.0] * 3, 9) == {0: {"x": 2}}
    assert lacking(results, [1.0] * 3, 0) == {}
    failed = [problem(1, {0: 1.0, 1: 5.0, 2: None}), *results[1:]]
    assert lacking(failed, [1.0] * 3, 9) == {2: {"x": 0}}
    there = [*results[:2], problem(4, {2: 1.0, 1: 5.0, 0: 1.01})]
    assert lacking(there, [1.0] * 3, 9) == {}


def test_the_rest_is_what_no_problem_tried() -> None:
    results = [problem(1, {0: 1.0, 1: 2.0}), problem(2, {0: 1.0})]
    assert rest(results, Budget(candidates=3, share=0.5)) == 3
    assert rest(results, Budget(candidates=1)) == 0 == rest(results, Budget()) == rest(results, Budget(seconds=9))
    assert rest(results, Budget(percent=100)) == 2 * 10 - 3


@pytest.mark.parametrize(("budget", "config", "more"), [
    (3, {"x": 6}, [6]), (3, {"x": 0}, []), (3, {"x": 99}, []), (Budget(candidates=3, seconds=1e-9), {"x": 6}, []),
])  # fmt: skip
def test_one_more_configuration_is_measured_once_and_in_time(
    budget: Any, config: dict[str, int], more: list[int], tmp_path: Path
) -> None:
    async def measured(budget: Any, *, also: bool) -> list[int]:
        tuner = atune.Tuner(machine=FakeMachine(8), strategy="exhaustive", journal=tmp_path / "j", budget=budget)
        if also:
            tuner.also(config)
        async with tuner:
            return [record.index for record in (await tuner.result()).records if record.status == "measured"]

    assert asyncio.run(measured(3, also=False)) == [0, 1, 2]
    assert asyncio.run(measured(budget, also=True)) == [0, 1, 2, *more]
    assert asyncio.run(measured(budget, also=True)) == [0, 1, 2, *more]


KERNELS = Path(__file__).parents[1] / "set_kernels.py"


def events(folder: Path, kind: type[Any]) -> list[tuple[str, int]]:
    """Return the journal's name and the candidate of each event of a kind in a set's folder."""
    found = ((path.name, each) for path in sorted(folder.glob("*.jsonl")) for each in JournalReader(path))
    return [(name, getattr(each, "index", 0)) for name, each in found if isinstance(each, kind)]


def untried(result: Result) -> dict[str, int]:
    known = [record.config for record in result.records]
    return next(one for block in (16, 32, 128) if (one := {"block": block}) not in known)


def test_a_set_tries_more_where_it_weighs_more_and_measures_a_winner_elsewhere_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three problems may try nine candidates: 2, 2 and 3 by their weights, and then what is lacking at the first."""
    asked: list[int] = []

    def first_lacks(results: Sequence[Result], weights: Sequence[float], most: int) -> dict[int, Any]:
        asked.append(most)
        assert weights == [1.0, 1.0, 2.0]
        return {0: untried(results[0])} if len(results[0].records) < 3 else {}

    problems = Problems([{"n": 256}, {"n": 512}, {"n": 1024}], weights=[1, 1, 2])
    rows: list[TunedProblem] = []
    options: dict[str, Any] = {"journal": tmp_path / "s", "budget": 3, "strategy": "random", **FAST}
    options["progress"] = True
    monkeypatch.setattr(tuning, "lacking", first_lacks)
    found = atune.run_set(f"{KERNELS}:FOUR", problems, on_result=rows.append, **options)
    assert asked == [2, 1] and [len(row.result.records) for row in found] == [3, 2, 3]
    measured = events(tmp_path / "s", CandidateMeasured)
    assert len(set(measured)) == len(measured) == 8
    assert [name for name, _ in events(tmp_path / "s", RunResumed)] == ["0000.jsonl"]
    assert found[0] is rows[-1] and found[0].result.measured == 3
    lines = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == f"[0/3] journals in {tmp_path / 's'}" and lines[-1] == "[again] n=256"
    assert [line.split()[0] for line in lines[1:-1]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert [row.result.header.settings["budget"]["candidates"] for row in found] == [3, 3, 3]
    keys = [result_key(row.result.header) for row in found]
    assert [key and key.search["budget"] for key in keys] == [{"candidates": 3, "seconds": None, "percent": None}] * 3
    again = asyncio.run(resume_set(tmp_path / "s"))
    assert str(again) == str(found) and events(tmp_path / "s", CandidateMeasured) == measured


def test_a_set_that_was_ended_while_a_winner_was_measured_elsewhere_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nine candidates the problems try 1, 1 and all 4 by their weights, so that their strategies differ, too."""
    problems, options = Problems([{"n": 256}, {"n": 512}, {"n": 1024}], weights=[1, 1, 9]), {"budget": 3, **FAST}
    wanted: dict[int, Any] = {}

    def both_lack(results: Sequence[Result], weights: Sequence[float], most: int) -> dict[int, Any]:
        wanted.update(wanted or {number: untried(results[number]) for number in range(2)})
        return wanted

    async def tune() -> None:
        with anyio.CancelScope() as scope:
            await atune.tune_set(
                f"{KERNELS}:FOUR", problems, journal=tmp_path / "s", **options,
                on_event=lambda event: scope.cancel() if isinstance(event, RunResumed) else None,
            )  # fmt: skip
        assert scope.cancelled_caught

    monkeypatch.setattr(tuning, "lacking", both_lack)
    asyncio.run(tune())
    assert len(events(tmp_path / "s", CandidateMeasured)) < 8
    found = asyncio.run(resume_set(tmp_path / "s"))
    measured = events(tmp_path / "s", CandidateMeasured)
    assert len(set(measured)) == len(measured) == 8 and len(found.winners) == 3
    assert {row.result.header.strategy for row in found} == {"random", "exhaustive"}
    assert [config in [r.config for r in found[number].result.records] for number, config in wanted.items()] == [
        True
    ] * 2
