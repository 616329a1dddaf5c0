"""Runs whose strategy learns: asked as devices answer, resumed, and ended where it goes wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import anyio.to_thread
import pytest
from fake_runs import proposed
from own_strategy import Own

from atune import NoWinner, Tuner, resume, tune
from atune.errors import StrategyError, UsageError
from atune.journal.reader import replay
from atune.model.artifact import FailureKind, StaticFacts
from atune.model.device import DeviceLimits
from atune.reporting.summary import summary_text
from atune.testing import FakeClock, FakeMachine, Script

pytestmark = pytest.mark.anyio

CONFIGS = [{"tile": 16 << t, "stages": s, "order": o} for t in range(5) for s in range(5) for o in ("row", "column")]


def latency(config: dict[str, Any]) -> float:
    return 1.0 + abs(config["tile"].bit_length() - 8) + 0.5 * abs(config["stages"] - 3) + (config["order"] == "row")


def fake(workers: int = 3, **script: Any) -> FakeMachine:
    return FakeMachine(
        CONFIGS, Script(latency_ms=latency, **{"fails": {3: "timeout", 9: "compile"}, **script}), workers=workers
    )


async def at_once(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """Stand in for `anyio.to_thread.run_sync`: when a thread ends depends on the machine."""
    return function(*arguments)


async def test_a_strategy_of_the_users_own_is_asked_ahead_what_fills_a_group_and_told_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anyio.to_thread, "run_sync", at_once)
    own = Own()
    script = {"code_key": lambda c: "same" if c["tile"] == 16 and c["stages"] == 4 else str(c), "fails": {3: "timeout"}}
    await tune(machine=fake(3, **script), strategy=own)
    assert own.asked == list(range(50)) and sorted(own.outcomes) == own.asked
    assert own.most == 16
    assert (
        own.outcomes[3] == (None, "timeout")
        and own.outcomes[9] == (None, "duplicate")
        and own.outcomes[8][0] == latency(CONFIGS[8])
    )


CPU = Script(lower_s=0.04, library_s=0.75, compile_s=0.12, measure_s=0.04)
CUDA = Script(lower_s=0.05, library_s=0.4, compile_s=0.35, measure_s=0.15)
SMALL = Script(lower_s=0.05, library_s=0.4, compile_s=0.35, measure_s=0.02)
"""Times as of a product on the CPU, on a GPU, and of a small one there, which waits for its compiles."""


@pytest.mark.parametrize(
    ("script", "workers", "budget", "most"),
    [
        (CPU, 1, 20, 1.22),
        (CUDA, 16, 24, 1.2),
        (CUDA, 16, 60, 1.2),
        (SMALL, 16, 100, 1.22),
    ],
)
async def test_learning_takes_a_fifth_longer_at_most(
    script: Script, workers: int, budget: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups stay large, and the device is kept busy. The strategy answers at once, in no thread."""
    monkeypatch.setattr(anyio.to_thread, "run_sync", at_once)
    walls_s = []
    for strategy in ("bayesian", "random"):
        machine = FakeMachine(120, script, workers=workers, clock=FakeClock())
        await tune(machine=machine, strategy=strategy, budget=budget)
        assert machine.clock is not None
        walls_s.append(machine.clock.now)
    assert walls_s[0] <= most * walls_s[1]


async def test_every_kind_of_failure_reaches_the_strategy_as_its_reason() -> None:
    """Also what is pruned. What is likely to spill is measured, and told with its latency."""
    own, kinds = Own(), [kind for kind in get_args(FailureKind) if kind != "suspect"]
    over, spilling = CONFIGS[len(kinds)], CONFIGS[len(kinds) + 1]

    def facts(config: dict[str, Any]) -> StaticFacts:
        return StaticFacts(smem_bytes=5000 if config == over else 0, accumulators=512 if config == spilling else 8)

    machine = FakeMachine(
        CONFIGS,
        Script(latency_ms=latency, fails=dict(enumerate(kinds)), facts=facts),
        limits=DeviceLimits(smem_bytes=4096),
    )
    await tune(machine=machine, strategy=own)
    assert [own.outcomes[index] for index in range(len(kinds))] == [(None, kind) for kind in kinds]
    assert own.outcomes[len(kinds)] == (None, "pruned")
    assert own.outcomes[len(kinds) + 1] == (latency(spilling), "")


class Forgetful(Own):
    """Raises when it is told of an outcome after some others."""

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        super().tell(index, latency_ms, reason)
        if len(self.outcomes) == 16:
            raise ValueError("no memory of that")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda: Own(wrong_at=40), r"ask\(\) returned 0 a second time"),
        (Forgetful, r"tell\(.*\) raised ValueError: no memory of that"),
    ],
    ids=["twice the same", "tell raises"],
)
async def test_a_strategy_that_goes_wrong_ends_the_run_and_keeps_what_was_measured(
    tmp_path: Path, strategy: Callable[[], Own], message: str
) -> None:
    with pytest.raises(StrategyError, match=rf"^strategy 'own': {message}"):
        await tune(machine=fake(), strategy=strategy(), journal=tmp_path / "j")
    assert replay(tmp_path / "j").measured >= 10
    with pytest.raises(UsageError, match="strategy 'own' is unknown"):
        await resume(tmp_path / "j", machine=fake())
    result = await resume(tmp_path / "j", machine=fake(), strategy=Own())
    assert not result.remaining


async def test_a_journal_goes_on_with_its_own_strategy_whatever_is_the_default(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    await tune(machine=fake(), journal=journal, strategy="exhaustive", budget=12)
    result = await tune(machine=fake(), journal=journal, budget=24)
    assert proposed(journal) == list(range(24)) and result.header is not None
    assert result.header.strategy == "exhaustive"


async def test_the_summary_says_which_values_were_left_for_the_end() -> None:
    def fails(config: dict[str, Any]) -> bool:
        return bool(config["order"] == "row")

    failing = {index: "timeout" for index, config in enumerate(CONFIGS) if fails(config)}
    own = {"fails": failing, "latency_ms": latency}
    result = await tune(machine=FakeMachine(CONFIGS, Script(**own), workers=1), budget=40)
    lines = [line for line in summary_text(result).splitlines() if "left for the end" in line]
    assert len(lines) == 1 and re.match(
        r"last       order='row' was left for the end, because all \d+ .* failed in the same way \(timeout\)", lines[0]
    )
    assert sum(record.status == "failed" for record in result.records) < 20
    other = await tune(machine=FakeMachine(CONFIGS, Script(**own), workers=1), budget=40, strategy="random")
    assert "left for the end" not in summary_text(other)


async def test_a_run_that_tried_nothing_says_what_ended_it() -> None:
    none = Own()
    none.ask = lambda: None  # type: ignore[method-assign]
    for options, why in (({"strategy": none}, "the strategy ended"), ({"budget": "0.001s"}, "the budget ended")):
        with pytest.raises(NoWinner, match=f"^no candidate was tried: {why} before the first one$"):
            await tune(machine=fake(start_s=9.0), **options)
    with pytest.raises(NoWinner, match=r"^no candidate was tried: stop\(\) was called before the first one$"):
        async with Tuner(machine=fake()) as tuner:
            tuner.stop()
            await tuner.result()
