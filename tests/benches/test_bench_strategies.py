"""The benchmark of strategies: what it keeps of earlier rows, and what it measures them on."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import strategies

from atune.search.simulation import Summary


def row(space: str, strategy: str, evaluations: int = 10) -> strategies.Row:
    shares = dict.fromkeys(("within_1pct", "within_2pct", "within_5pct", "regret_median", "wall_s_median"), 0.5)
    summary = Summary(strategy=strategy, evaluations=evaluations, seeds=100, evaluations_to_2pct_median=None, **shares)
    return strategies.Row(
        space=space, total=100, summary=summary, low_2pct=0.4, high_2pct=0.6, curve={"10": 0.1}, cpu_ms=1.0
    )


def test_rows_that_are_not_played_stay(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert strategies.kept(path, [], []) == []
    rows = [row("transpose", "forest"), row("transpose", "local"), row("gemm288", "forest")]
    path.write_text(json.dumps({"seeds": 100, "rows": msgspec.to_builtins(rows)}))
    assert strategies.kept(path, ["transpose"], ["forest"]) == rows[1:]


def test_rows_come_by_space_then_budget_then_strategy() -> None:
    rows = [row("transpose", "forest"), row("gemm288", "forest", 40), row("gemm288", "forest"), row("gemm288", "local")]
    found = [(r.space, r.summary.evaluations, r.summary.strategy) for r in strategies.in_order(rows)]
    assert found == [
        ("gemm288", 10, "local"), ("gemm288", 10, "forest"), ("gemm288", 40, "forest"), ("transpose", 10, "forest"),
    ]  # fmt: skip


def test_cpu_time_is_measured_on_a_space_of_4000_points() -> None:
    configs = strategies.synthetic()
    assert len(configs) == 4000 == len({json.dumps(config) for config in configs.values()})
    best = min(configs.values(), key=strategies.synthetic_ms)
    assert strategies.synthetic_ms(best) < 1.5
    each, once = strategies.cpu_ms("local", 40)
    assert each >= 0 and once > 0
