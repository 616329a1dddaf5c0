"""What the demo claims on the CPU: its winner beats the default and the slowest."""

from __future__ import annotations

import sys
from pathlib import Path

import atune
from atune.model.measurement import ratio_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))


def test_the_winner_beats_default_and_slowest() -> None:
    """Found in one run, then timed again with the two others, interleaved, in a run of just these three."""
    import gemm_cpu

    found = atune.run(gemm_cpu.WORKLOAD, target="c")
    assert found.measured == 36 and found.best and found.default
    slowest = max(found.records, key=lambda record: record.latency_ms or 0.0).config
    winner, default = found.best.config, found.default.config
    assert winner != default
    again = atune.run(
        atune.Workload(
            gemm_cpu.matmul,
            atune.Space([winner, default, slowest]),
            arguments=gemm_cpu.WORKLOAD.arguments,
            reference=gemm_cpu.reference,
        ),
        target="c",
        benchmark=atune.BenchmarkSettings(n_final=3, n_final_rounds=40),
    )
    timing = {entry.index: entry.timing for entry in again.final}
    assert set(timing) == {0, 1, 2} and all(len(t.samples_us) == 40 for t in timing.values())
    low, median, high = ratio_interval(timing[1], timing[0])
    assert 1 < low <= median <= high, f"default / winner: {low:.2f} to {high:.2f}"
    low, median, high = ratio_interval(timing[2], timing[0])
    assert low > 1 and median >= 2, f"slowest / winner: {low:.2f} to {high:.2f}"
