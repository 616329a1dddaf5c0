"""Advice from elsewhere in simulated runs: right advice finds the best soon, wrong advice costs its own evaluations."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from recording import Recording, Tried
from simulate import simulate_run, summary_of

from atune.engine.search.forest import POLISHED
from atune.engine.search.interface import Guarded, Searched
from atune.engine.search.strategies import MAKERS, make_strategy
from atune.model.candidate import Config

CONFIGS: dict[int, Config] = {
    n: {"tile": tile, "stages": stages, "policy": policy}
    for n, (tile, stages, policy) in enumerate(
        itertools.product((16, 32, 64, 128, 256, 512), range(6), ("row", "column", "full"))
    )
}


def latency(config: Config) -> float:
    far = abs(config["tile"].bit_length() - 8) + abs(config["stages"] - 3)
    return 1.0 + 0.3 * far + 0.2 * (config["policy"] != "column")


RECORDING = Recording(CONFIGS, {n: Tried(latency(c), "", 0.1, 0.5, 0.2) for n, c in CONFIGS.items()}, {})
WRONG = sorted(CONFIGS, key=lambda n: -latency(CONFIGS[n]))[:4]
"""The slowest."""
BUDGET = 28


def within_5pct(advised: list[int], budget: int) -> float:
    make = partial(make_strategy, "forest")
    trials = [
        simulate_run(RECORDING, make, Searched(CONFIGS, seed, budget, advised=advised), workers=4) for seed in range(3)
    ]
    return summary_of("forest", budget, trials, RECORDING).within_5pct


def test_wrong_advice_costs_a_search_no_more_than_its_own_evaluations() -> None:
    assert within_5pct(WRONG, BUDGET + len(WRONG)) >= within_5pct([], BUDGET) - 0.05


@pytest.mark.parametrize("name", list(MAKERS))
def test_what_is_advised_comes_first_and_everything_once(name: str) -> None:
    few = {n: config for n, config in CONFIGS.items() if n % 2}
    searched = Searched(few, 0, 40, advised=[*few][10:14])
    strategy, asked = Guarded(make_strategy(name, searched), few, searched.first), []
    while (index := strategy.ask()) is not None:
        asked.append(index)
        strategy.tell(index, latency(CONFIGS[index]) if len(asked) < 20 else None, "")
    assert sorted(asked) == sorted(few) and asked[:4] == searched.first


@pytest.mark.parametrize("budget", [None, 60])
def test_the_forest_learns_from_its_own_outcomes_alone(budget: int | None) -> None:
    """It asks the same whether advised candidates are the best here or the worst, until it looks around the best."""
    pytest.importorskip("sklearn")
    count = 60 if budget is None else 60 - int(POLISHED * budget)
    asked: list[list[int]] = []
    for factor in (0.5, 20.0):
        searched, order = Searched(CONFIGS, 0, budget, advised=WRONG), list[int]()
        strategy = Guarded(make_strategy("forest", searched), CONFIGS, searched.first)
        for _ in range(count):
            index = strategy.ask()
            assert index is not None
            order.append(index)
            strategy.tell(index, factor if index in WRONG else latency(CONFIGS[index]))
        asked.append(order)
    assert asked[0] == asked[1] and asked[0][: len(WRONG)] == WRONG


def test_a_prior_fills_the_rest_of_the_beginning() -> None:
    prior = {n: float(n) for n in CONFIGS}
    searched = Searched(CONFIGS, prior=prior, advised=[50, 51])
    strategy = Guarded(make_strategy("forest", searched), CONFIGS, searched.first)
    assert [strategy.ask() for _ in range(7)] == [50, 51, 0, 1, 2, 3, 4]
