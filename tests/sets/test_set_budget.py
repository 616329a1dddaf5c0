"""Where a set's budget goes: shares by weight."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import atune
from atune import Problems
from atune.engine.search.recording import Recording, read_recording
from atune.engine.search.registry import make_strategy
from atune.engine.search.simulation import simulate_seeds
from atune.frontends.sets.tuning import LEAST, resume_set, shares
from atune.journal.events import CandidateMeasured
from atune.journal.reader import JournalReader
from atune.model.settings import Budget
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
        total = sum(Budget(candidates=each, share=share).most(1000) or 0 for share in found)
        assert total <= each * len(weights)


def test_equal_weights_share_equally() -> None:
    assert shares([3.0] * 8) == [1.0] * 8
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
    for seed in range(30):
        draw = random.Random(seed)
        weights = [math.exp(draw.gauss(0, 1.5)) for _ in spaces]
        counts = [Budget(candidates=24, share=share).most(24**2) or 0 for share in shares(weights)]
        assert sum(counts) <= 24 * len(spaces)
        equal += weighted_regret([24] * len(spaces), spaces, weights, seed)
        shared += weighted_regret(counts, spaces, weights, seed)
    assert shared < 0.9 * equal


KERNELS = Path(__file__).parents[1] / "set_kernels.py"


def events(folder: Path, kind: type[Any]) -> list[tuple[str, int]]:
    """Return the journal's name and the candidate of each event of a kind in a set's folder."""
    found = ((path.name, each) for path in sorted(folder.glob("*.jsonl")) for each in JournalReader(path))
    return [(name, getattr(each, "index", 0)) for name, each in found if isinstance(each, kind)]


def test_a_set_tries_more_where_it_weighs_more_and_goes_on_with_several_strategies(tmp_path: Path) -> None:
    """Of nine candidates the problems try 1, 1 and all 4 by their weights, so that their strategies differ, too."""
    problems = Problems([{"n": 256}, {"n": 512}, {"n": 1024}], weights=[1, 1, 9])
    found = atune.run_set(f"{KERNELS}:FOUR", problems, journal=tmp_path / "s", budget=3, **FAST)
    measured = events(tmp_path / "s", CandidateMeasured)
    assert [len(row.result.records) for row in found] == [1, 1, 4] and len(set(measured)) == len(measured) == 6
    assert {row.result.header.strategy for row in found} == {"random", "exhaustive"}
    assert [row.result.header.settings["budget"]["candidates"] for row in found] == [3, 3, 3]
    keys = [result_key(row.result.header) for row in found]
    assert [key and key.search["budget"] for key in keys] == [{"candidates": 3, "seconds": None, "percent": None}] * 3
    again = asyncio.run(resume_set(tmp_path / "s"))
    assert str(again) == str(found) and events(tmp_path / "s", CandidateMeasured) == measured
