"""Skipping likely losers, on what real devices measured: the screen never loses the best of a recorded space."""

from __future__ import annotations

from pathlib import Path

import pytest
from spaces import PROBLEMS, journal_in

from atune.journal.events import CandidateLowered, CandidateMeasured
from atune.journal.reader import JournalReader
from atune.journal.state import State

ROOT = Path(__file__).parents[2]
GEMM288 = ROOT / "bench" / "results" / "gemm288" / "atune.jsonl"
RECORDED = {path.name.partition(".")[0]: path for path in sorted((ROOT / "bench" / "spaces").glob("*.jsonl.xz"))}
SPACES = {"gemm288": GEMM288, **RECORDED}


@pytest.mark.parametrize("space", SPACES)
def test_skipping_likely_losers_keeps_the_best_of_a_recorded_space(space: str) -> None:
    state, likely = State(), set[int]()
    with journal_in(SPACES[space]) as journal:
        for event in JournalReader(journal):
            state.apply(event)
            if isinstance(event, CandidateLowered) and event.deferred:
                likely.add(event.index)
    codes = {state.first(index).index for index in likely}
    measured = [(state.first(one.index).index in codes, one.timing.latency_ms) for one in state.ranked()]
    best = min(latency_ms for skipped, latency_ms in measured if not skipped)
    ratios = [latency_ms / best for skipped, latency_ms in measured if skipped]
    failed = sum(not isinstance(state.outcome(index), CandidateMeasured) for index in codes)
    least = 1.8 if space in PROBLEMS else 2.0  # one attention takes 14 µs, much of it in any candidate
    assert len(codes) == len(ratios) + failed and all(ratio > least for ratio in ratios)
    assert not failed or space in PROBLEMS, "only spaces without constraints have candidates that cannot run"
