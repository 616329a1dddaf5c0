"""The default configuration: measured first whatever is searched, outside of the space too, and returned where nothing
beats it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from fake_runs import cut, finish, proposed, valley
from own_strategy import Own
from recording import read_recording

from atune.engine.final import final_order
from atune.errors import AtuneError, NoWinner
from atune.frontends.cli.runs import record_at
from atune.frontends.resume import resume
from atune.frontends.tuner import tune
from atune.journal.events import BestChanged, CandidateMeasured, FinalOrdered, RunFinished
from atune.journal.merge import merge
from atune.journal.reader import read, replay
from atune.journal.result import TuneResult
from atune.model.artifact import StaticFacts
from atune.model.candidate import BASELINE
from atune.model.measurement import Timing
from atune.model.settings import BenchmarkSettings
from atune.reporting.export import export, marks_of, ranking, record_lines, table
from atune.reporting.report import report
from atune.reporting.summary import default_line, summary, summary_text
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

OUTSIDE = {"x": 1000}
"""A default that no space here holds."""
FAST_OUTSIDE = Script(latency_ms=lambda c: 0.5 if c == OUTSIDE else 1.0 + c["x"])
SLOW_OUTSIDE = Script(latency_ms=lambda c: 8.0 if c == OUTSIDE else 1.0 + c["x"])
STRATEGIES = ["exhaustive", "random", "prior", "bayesian", "own"]


def made(strategy: str) -> Any:
    return Own() if strategy == "own" else strategy


# ---- in the space


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("budget", "count"), [(1, 1), ("10%", 10), (None, 100)])
async def test_the_default_is_the_first_of_every_strategy_under_every_budget(
    strategy: str, budget: Any, count: int
) -> None:
    machine = FakeMachine(100, Script(latency_ms=valley(3)), default=61)
    run = await finish(machine, strategy=made(strategy), budget=budget, seed=4)
    assert proposed(run.events)[0] == 61 and machine.lowered[0] == 61
    assert len(set(proposed(run.events))) == len(proposed(run.events)) == count == run.result.measured
    assert run.result.default is not None and run.result.default.status == "measured"


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_an_optimum_that_is_the_default_is_returned_under_a_small_budget(strategy: str) -> None:
    for seed in range(3):
        machine = FakeMachine(300, Script(latency_ms=valley(287)), default=287)
        result = (await finish(machine, strategy=made(strategy), budget=10, seed=seed)).result
        assert result.best_config == {"x": 287} and result.default_wins
        assert "no configuration beats the default" in summary_text(result)
        assert result.default_ms == result.latency_ms and result.default_ratio == 1.0


async def test_of_equals_the_default_is_returned_also_when_it_is_not_among_the_best_by_first_timing() -> None:
    script = Script(latency_ms=lambda c: 1.0 + c["x"] / 10, final_ms=lambda c: 1.0)
    run = await finish(FakeMachine(20, script, default=15), benchmark=BenchmarkSettings(n_final=3))
    assert run.result.best_index == 15 and set(run.result.ties or ()) == {0, 1, 2}
    run = await finish(FakeMachine(5, Script(latency_ms=valley(2))))
    assert run.result.ties == () and run.of(FinalOrdered)[0].ties == ()


WIDE = (-0.1, 0.1) * 10
"""Noise that hides a gain of 2 %."""


@pytest.mark.parametrize(
    ("gain", "noise", "default_wins"),
    [
        (0.98, (0.0,) * 20, True),
        (1.0, (0.0,) * 20, True),
        (1.004, (0.0,) * 20, True),  # is printed as «as fast as the default»
        (1.006, (0.0,) * 20, False),
        (1.02, WIDE, True),  # is printed as «statistically tied with the default»
        (1.02, (-0.001, 0.001) * 10, False),
        (1.3, WIDE, False),
    ],
)
@pytest.mark.parametrize("contenders", [[0, 1], [1, 0, 2]])
def test_a_default_is_returned_if_the_winners_gain_lies_within_its_interval(
    gain: float, noise: Sequence[float], default_wins: bool, contenders: list[int]
) -> None:
    def timing(ms: float, noise: Sequence[float]) -> Timing:
        return Timing.of([1e3 * ms * (1 + one) for one in noise], "perf_counter")

    timings = {0: timing(gain, noise), 1: timing(1.0, noise[::-1]), 2: timing(1.001, noise[::-1])}
    keys = {0: "c", 1: "a", 2: "b"}
    order, _ = final_order(timings, contenders, keys, default=0)
    assert order[0].index == (0 if default_wins else 1) and {one.index for one in order} == {0, 1, 2}
    assert final_order(timings, [1, 2], keys, default=0)[0][0].index == 1  # it may not win


async def test_a_likely_loser_is_measured_if_it_is_the_default() -> None:
    script = Script(facts=lambda c: StaticFacts(accumulators=300 if c["x"] > 3 else 10), latency_ms=valley(6))
    run = await finish(FakeMachine(12, script, default=6), budget=11, strategy="exhaustive")
    assert run.result.best_index == 6 and run.result.pruned == 6


async def test_why_there_is_no_default_is_said_in_a_line() -> None:
    run = await finish(FakeMachine(6, no_default="x has no default value"))
    assert default_line(run.result).endswith("no default configuration to compare with: x has no default value")
    assert summary(run.result)["no_default"] == default_line(run.result)


# ---- outside of the space


@pytest.mark.parametrize("strategy", [*STRATEGIES, None])
@pytest.mark.parametrize("budget", [1, "10%", None])
async def test_a_default_outside_of_the_space_is_measured_first_and_counts_nowhere(strategy: Any, budget: Any) -> None:
    machine = FakeMachine(100, FAST_OUTSIDE, default=OUTSIDE)
    own = made(strategy)
    run = await finish(machine, strategy=own, budget=budget)
    count = {1: 1, "10%": 10}.get(budget, 100)
    assert proposed(run.events)[0] == BASELINE == machine.lowered[0] and len(proposed(run.events)) == 1 + count
    assert (run.result.measured, run.result.total, len(run.result.records)) == (count, 100, count)
    assert run.result.best_config == OUTSIDE and run.result.best_index == BASELINE and run.result.latency_ms == 0.5
    assert default_line(run.result) == "nothing in the space beats the default, which is outside the space"
    [end] = run.of(RunFinished)
    assert end.kernel is not None and end.kernel.index == BASELINE
    assert run.result.built == count and run.result.remaining == 100 - count
    if isinstance(own, Own):
        assert BASELINE not in own.outcomes and own.searched.default is None and BASELINE not in own.searched.configs


@pytest.mark.parametrize("script", [FAST_OUTSIDE, SLOW_OUTSIDE])
async def test_a_baseline_reads_alike_from_its_journal_and_is_shown_with_the_candidates(
    script: Script, tmp_path: Path
) -> None:
    result = await tune(machine=FakeMachine(20, script, default=OUTSIDE), journal=tmp_path / "j", budget=9)
    again = replay(tmp_path / "j")
    assert summary(again) == summary(result) and again.header is not None and again.header.default == BASELINE
    assert result.baseline is not None and again.baseline == result.baseline
    assert result.default_ms == (8.0 if script is SLOW_OUTSIDE else 0.5)
    if script is SLOW_OUTSIDE:
        assert result.default_ratio == round(8.0 / result.latency_ms, 5)  # type: ignore[operator]
        assert result.speedup_over_default is not None and result.speedup_over_default[0] > 1
    assert "default, not in the space" in report(tmp_path / "j") and "x=1000" in table(result)
    assert b"-1," in export(tmp_path / "j", "csv") and len(export(tmp_path / "j", "csv").splitlines()) == 1 + 9 + 1
    mark = f"{'' if script is SLOW_OUTSIDE else 'winner, '}default, not in the space"
    assert record_lines(record_at(result, BASELINE), "", result)[0] == f"candidate  -1: measured, {mark}"


async def test_a_baseline_whose_outputs_are_not_checked_is_compared_with_and_not_returned() -> None:
    """It may be another program: an axis of one value may decide what is computed."""
    run = await finish(FakeMachine(6, replace(FAST_OUTSIDE, reference_ms=None), default=OUTSIDE))
    assert run.result.best_config == {"x": 0} and not run.result.default_wins and run.result.default_ratio == 0.5
    assert default_line(run.result) == (
        "2.00 times slower than the default configuration (0.5 ms, 95 % interval 0.50–0.50). The default is not "
        "returned: it is outside the space, and its outputs were not checked"
    )
    slow = await finish(FakeMachine(6, replace(SLOW_OUTSIDE, reference_ms=None), default=OUTSIDE))
    assert slow.result.default_ratio == 8.0 and "checked" not in default_line(slow.result)


REFUSED = "the constraint lambda x: x < 500 refuses it"


@pytest.mark.parametrize("strategy", [*STRATEGIES, None])
@pytest.mark.parametrize("budget", [8, None])
async def test_a_default_that_a_constraint_refuses_is_compared_with_and_never_wins(strategy: Any, budget: Any) -> None:
    machine = FakeMachine(100, replace(FAST_OUTSIDE, cicc=True), default=OUTSIDE, refused=REFUSED)
    run = await finish(machine, strategy=made(strategy), budget=budget)
    assert proposed(run.events)[0] == BASELINE
    assert run.result.best_index == min(run.measured()[1:]) and not run.result.default_wins
    assert run.result.default_ms == 0.5 and run.result.default_ratio is not None and run.result.default_ratio < 1
    assert default_line(run.result).endswith(f"not returned: it is outside the space, and {REFUSED}")
    assert all(event.index != BASELINE for event in run.of(BestChanged)) and not run.result.warnings
    [end] = run.of(RunFinished)
    assert end.kernel.index == run.result.best_index


@pytest.mark.parametrize("refused", ["", REFUSED])
@pytest.mark.parametrize("check", [1.0, None])
async def test_where_nothing_of_the_space_works_the_default_is_no_winner(
    refused: str, check: float | None, tmp_path: Path
) -> None:
    """Whatever the default does: a run that returned it would hide that the space is broken."""
    fails = Script(fails=dict.fromkeys(range(4), "mismatch"), latency_ms=lambda c: 0.5, reference_ms=check)
    with pytest.raises(NoWinner) as raised:
        await tune(machine=FakeMachine(4, fails, default=OUTSIDE, refused=refused), journal=tmp_path / "j")
    told = "nothing in the space worked, but your default did: x=1000 (0.5 ms)" + (f"; {refused}" if refused else "")
    assert str(raised.value).splitlines()[:2] == [told, "no candidate worked: 4 failed"]
    for result in (raised.value.result, replay(tmp_path / "j")):
        assert not isinstance(result, TuneResult) and result.best_config is result.latency_ms is result.kept is None
        assert (result.default_ms, result.failed, result.measured) == (0.5, 4, 0)
        assert summary_text(result).splitlines()[0] == told and summary_text(result).count(told) == 1
        assert list(summary(result)["warnings"]) == [told] and summary(result)["best_config"] is None
        assert escape(told) in result._repr_html_()
        with pytest.raises(AtuneError, match="there is no kernel"):
            result.kernel  # noqa: B018
    assert json.dumps(f"N{told[1:]}.").replace("<", "\\u003c") in report(tmp_path / "j")
    with pytest.raises(NoWinner, match="nothing in the space worked"):
        await resume(tmp_path / "j", machine=FakeMachine(4, fails, default=OUTSIDE, refused=refused))
    assert merge([tmp_path / "j"]).best is None


async def test_the_text_of_a_strangers_default_is_no_markup(tmp_path: Path) -> None:
    fails = Script(fails={0: "mismatch"}, latency_ms=lambda c: 0.5)
    with pytest.raises(NoWinner) as raised:
        await tune(machine=FakeMachine(1, fails, default={"x": "<b>"}), journal=tmp_path / "j")
    assert "<b>'" not in report(tmp_path / "j") and "'<b>" not in raised.value.result._repr_html_()


@pytest.mark.parametrize(("refused", "best"), [("", BASELINE), (REFUSED, 1)])
async def test_a_winner_that_fails_in_the_final_gives_way_to_what_may_win(refused: str, best: int) -> None:
    script = replace(FAST_OUTSIDE, final_fails={0: "mismatch"})
    run = await finish(FakeMachine(2, script, default=OUTSIDE, refused=refused))
    assert (run.result.best_index, run.result.failed) == (best, 1)
    if not refused:
        with pytest.raises(NoWinner, match="nothing in the space worked, but your default did: x=1000"):
            await tune(machine=FakeMachine(1, script, default=OUTSIDE))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("fails", "outcome"), [({}, (0.5, "")), ({BASELINE: "mismatch"}, (None, "mismatch"))])
async def test_a_candidate_with_the_baselines_code_counts_and_the_strategy_gets_its_outcome(
    workers: int, fails: Any, outcome: Any, tmp_path: Path
) -> None:
    script = Script(
        latency_ms=lambda c: 0.5 if c["x"] in (4, 1000) else 1.0, fails=fails, code_key=lambda c: str(c["x"] % 996)
    )
    own = Own()
    machine = FakeMachine(8, script, default=OUTSIDE, workers=workers)
    run = await finish(machine, strategy=own, journal=tmp_path / "j")
    if not fails:
        assert (run.result.measured, run.result.duplicates, run.result.built) == (8, 0, 8)
        assert run.result.baseline is not None and run.result.baseline.same_as == 4 == run.result.best_index
        assert default_line(run.result) == "no configuration beats the default; candidate 4 compiles to the same code"
    assert own.outcomes == dict.fromkeys(range(8), (1.0, "")) | {4: outcome}
    tried = read_recording(tmp_path / "j").tried
    assert {x: (one.latency_ms, one.reason) for x, one in tried.items()} == own.outcomes
    assert tried[4].device_s > 0


async def test_cut_after_any_event_a_baseline_is_measured_once(tmp_path: Path) -> None:
    def machine() -> FakeMachine:
        return FakeMachine(12, SLOW_OUTSIDE, default=OUTSIDE)

    whole = tmp_path / "whole"
    await tune(machine=machine(), journal=whole, strategy="random", budget=9)
    wanted = replay(whole)
    for count in range(1, len(read(whole)), 3):
        part = cut(whole, count, tmp_path / "part")
        result = await resume(part, machine=machine())
        events = read(part)
        assert proposed(events) == proposed(whole), f"cut after {count} events"
        assert sum(isinstance(e, CandidateMeasured) and e.index == BASELINE for e in events) == 1
        assert (result.best_index, result.default_ms, result.measured) == (wanted.best_index, 8.0, 9)


# ---- the figures


@pytest.mark.parametrize("default", [19, OUTSIDE])
async def test_default_and_reference_are_timed_in_every_round_of_the_winner(default: Any) -> None:
    """The order of the best two is open for long, because their samples scatter."""
    rng = random.Random(3)
    script = Script(
        latency_ms=lambda c: 8.0 if c in ({"x": 19}, OUTSIDE) else 1.0 if c["x"] < 2 else 3.0,
        final_noise=lambda index: 1.0 + (0.1 * rng.random() if index in (0, 1) else 0.0),
    )
    run = await finish(FakeMachine(20, script, default=default), benchmark=BenchmarkSettings(n_final_rounds=5))
    [final] = run.of(FinalOrdered)
    samples = {entry.index: entry.timing.n_samples for entry in final.entries}
    rounds = samples[final.entries[0].index]
    assert final.reference is not None and rounds > 5
    assert samples[BASELINE if default is OUTSIDE else 19] == final.reference.n_samples == rounds
    assert min(samples.values()) == 5  # the others are known to be slower
    result = run.result
    assert result.reference_ratio == round(result.reference_ms / result.latency_ms, 5)  # type: ignore[operator]
    assert result.default_ratio == round(result.default_ms / result.latency_ms, 5)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("default", "refused", "config", "warned"),
    [(5, "", 5, False), (OUTSIDE, "", 1000, True), (OUTSIDE, REFUSED, 4, False)],
)
async def test_of_equal_code_the_defaults_own_values_win(
    default: Any, refused: str, config: int, warned: bool, tmp_path: Path
) -> None:
    """Where nothing beats the default: not those of the candidate that was measured for it."""
    script = Script(
        latency_ms=lambda c: 0.5 if c["x"] in (4, 5, 1000) else 1.0,
        code_key=lambda c: "4" if c["x"] in (4, 5, 1000) else str(c["x"]),
    )
    await tune(machine=FakeMachine(8, script, default=default, refused=refused), journal=tmp_path / "j")
    result = replay(tmp_path / "j")
    assert result.default_wins and result.best is not None
    assert result.best_config == summary(result)["best_config"] == {"x": config}
    assert result.best.latency_ms == result.latency_ms == 0.5 and result.best.config == {"x": config}
    shown = summary_text(result)
    assert shown.startswith(f"winner     x={config}\n") and ("which the space does not list" in shown) is warned
    assert f"the winner, x={config}, is your default" in shown or not warned
    assert record_at(result, None) is result.best and ranking(result)[0] is result.best
    assert "winner" in marks_of(result)[result.best.index]
