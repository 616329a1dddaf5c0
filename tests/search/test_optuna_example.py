"""The example that puts a sampler of Optuna's behind a run: each candidate once, also where it is resumed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from fake_runs import proposed

from atune import resume, tune
from atune.testing import FakeMachine, Script

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install optuna")
pytestmark = pytest.mark.anyio

CONFIGS: list[dict[str, Any]] = [
    {"tile": 16 << t, "stages": s, "order": order}
    for t in range(6) for s in range(5) for order in ("row", "column", None) if t * s < 18
]  # fmt: skip
SCRIPT = Script(latency_ms=lambda c: 1.0 + abs(c["tile"].bit_length() - 8) + abs(c["stages"] - 3))


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes the example's strategy."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "examples")
    example = importlib.import_module("optuna_strategy")
    return lambda seed=0: example.OptunaStrategy(optuna.samplers.TPESampler(seed=seed))


async def test_a_sampler_goes_on_where_a_run_was_left(tmp_path: Path, strategy: Any) -> None:
    options: dict[str, Any] = {"machine": FakeMachine(CONFIGS, SCRIPT), "strategy": strategy(1)}
    await tune(**options, budget=10, journal=tmp_path / "j")
    before = proposed(tmp_path / "j")
    result = await resume(tmp_path / "j", machine=FakeMachine(CONFIGS, SCRIPT), strategy=strategy(1))
    after = proposed(tmp_path / "j")
    assert after[:10] == before and len(set(after)) == len(after) == result.measured == len(CONFIGS)
