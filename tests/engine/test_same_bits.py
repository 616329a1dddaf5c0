"""Outputs' bits: what a run says of them, and who may win where only the default's bits are admitted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import cut, finish

from atune.errors import NoWinner
from atune.frontends.resume import resume
from atune.frontends.tuner import tune
from atune.journal.events import BitsCompared, FinalOrdered, FinalStarted
from atune.journal.merge import merge
from atune.journal.reader import read, replay
from atune.model.candidate import BASELINE
from atune.model.settings import BenchmarkSettings
from atune.reporting.sets import compare
from atune.reporting.summary import bits_line, summary, summary_text
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

SAME = BenchmarkSettings(same_bits="default")
THIRDS = Script(latency_ms=lambda c: 4.0 - 0.1 * c["x"], bits=lambda c, seed: f"{c['x'] % 3}")
"""The larger x, the faster. The default, x=0, has the bits of each third one."""
THREE_OF_EIGHT = "the default's bits; 3 of 8 measured candidates do; 3 distinct outputs"


def machine(script: Script = THIRDS, **given: Any) -> FakeMachine:
    return FakeMachine(8, script, default={"x": 0}, **given)


async def test_a_run_says_how_many_have_the_defaults_bits(tmp_path: Path) -> None:
    run = await finish(machine(), journal=tmp_path / "j")
    assert run.result.best_config == {"x": 7} and run.result.best.bits == "1"
    bits = run.result.same_bits
    assert (bits.asked, bits.winner, bits.same, bits.measured, bits.classes, bits.seeds) == (False, False, 3, 8, 3, 1)
    line = f"same bits  the winner does not have {THREE_OF_EIGHT}"
    assert line in summary_text(run.result).splitlines() and line in summary_text(replay(tmp_path / "j")).splitlines()
    assert summary(run.result)["same_bits"]["classes"] == 3
    run = await finish(machine(replace(THIRDS, bits=lambda c, seed: "0")))
    assert run.result.same_bits.classes == 1 and bits_line(run.result) == ""  # nothing is said


@pytest.mark.parametrize("n_final", [5, 1, 0])
async def test_only_those_with_the_defaults_bits_win(n_final: int, tmp_path: Path) -> None:
    settings = BenchmarkSettings(same_bits="default", n_final=n_final)
    run = await finish(machine(benchmark=settings), benchmark=settings, journal=tmp_path / "j")
    assert run.result.best_config == {"x": 6} and run.result.measured == 8
    seeds = 3 if n_final else 1
    drawn = "; compared on 3 draws of the inputs" if n_final else ""
    assert bits_line(run.result) == f"the winner has {THREE_OF_EIGHT}{drawn}"
    assert {e.index for f in run.of(FinalOrdered) for e in f.entries} <= {BASELINE, 0, 3, 6}
    again = await resume(tmp_path / "j", machine=machine(benchmark=settings))
    assert again.best_config == {"x": 6} and again.same_bits.seeds == seeds


async def test_one_that_differs_on_other_inputs_does_not_win_nor_does_it_in_a_merged_run(tmp_path: Path) -> None:
    script = replace(THIRDS, bits=lambda c, seed: f"{c['x'] % 3} {seed and c['x'] == 6}")
    for name in ("one", "two"):
        run = await finish(machine(script, benchmark=SAME), benchmark=SAME, journal=tmp_path / name)
        assert run.result.best_config == {"x": 3} and run.result.same_bits.same == 2
        assert [event.differ for event in run.of(BitsCompared)] == [(6,), ()]
    merged = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "merged")
    assert merged.best_config == replay(tmp_path / "merged").best_config == {"x": 3}
    assert merged.same_bits.winner and merged.same_bits.seeds == 1


async def test_a_default_that_is_lost_before_the_final_ends_no_run(tmp_path: Path) -> None:
    """Its library cannot be compiled again: what the check's inputs told of the others' bits stands."""
    await finish(machine(benchmark=SAME), benchmark=SAME, journal=tmp_path / "j")
    cut(tmp_path / "j", next(event.seq for event in read(tmp_path / "j") if isinstance(event, FinalStarted)))
    broken = replace(THIRDS, fails=dict.fromkeys((BASELINE, 0), ("build", "compile")))
    again = await resume(tmp_path / "j", machine=machine(broken, benchmark=SAME))
    assert again.best_config == {"x": 6} and {entry.index for entry in again.final} == {3, 6}
    assert again.same_bits.winner and again.same_bits.seeds == 1


async def test_without_the_defaults_bits_there_is_no_winner() -> None:
    script = replace(THIRDS, fails={BASELINE: "mismatch", 0: "mismatch"})
    with pytest.raises(NoWinner, match="no candidate is known to have the default's bits"):
        await tune(machine=machine(script, benchmark=SAME), benchmark=SAME)


async def test_what_changes_its_bits_from_call_to_call_does_not_win() -> None:
    calls = itertools.count()
    script = replace(THIRDS, bits=lambda c, seed: f"{c['x'] % 3} {next(calls) if c['x'] == 6 else 0}")
    run = await finish(machine(script, benchmark=SAME), benchmark=SAME)
    assert run.result.best_config == {"x": 3}
    assert "; 1 varies from call to call" in bits_line(run.result)


async def test_compare_says_which_winners_changed_bits(tmp_path: Path) -> None:
    for name, settings in {"one": SAME, "two": BenchmarkSettings()}.items():
        await tune(machine=machine(benchmark=settings), benchmark=settings, journal=tmp_path / name)
    found = compare(tmp_path / "one", tmp_path / "two")
    assert found.problems[0].same_bits is False and "x=7 (was x=6); other bits" in str(found)
    assert compare(tmp_path / "one", tmp_path / "one").problems[0].same_bits
