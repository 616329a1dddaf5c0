"""When enough is tried: the chance that the rule reckons with is the one that comes true; batches end it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atune.engine.search.bayesian import Bayesian, _kernel
from atune.engine.search.enough import BETTER, FIRST, LIKELY, Enough
from atune.engine.search.interface import Guarded, Searched
from atune.engine.search.strategies import make_strategy

CONFIGS = {index: {"x": index % 20, "y": index // 20} for index in range(200)}
PRIOR = {index: 1.0 + 0.01 * (index * 37 % 200) for index in CONFIGS}
ORDER = sorted(PRIOR, key=PRIOR.__getitem__)
ALIKE = np.linalg.cholesky(np.kron(_kernel(10, ordered=True), _kernel(20, ordered=True)) + 1e-9 * np.eye(200))


def drawn(seed: int, deviation: float, *, alike: bool = True) -> dict[int, float | None]:
    """Return latencies about twice the estimates, with normal errors: those of alike candidates are alike, or none."""
    errors = np.random.default_rng(seed).standard_normal(200) * deviation
    return {index: 2.0 * PRIOR[index] * math.exp(e) for index, e in enumerate(ALIKE @ errors if alike else errors)}


def told(latency: dict[int, float | None], strategy: str = "bayesian", *, until: int = 200) -> tuple[Enough, list[int]]:
    """Play a strategy in batches until enough is tried, or up to the outcome number `until`."""
    searched = Searched(CONFIGS, prior=PRIOR)
    made = make_strategy(strategy, searched)
    enough, tried = Enough(made, searched), list[int]()
    guarded = Guarded(made, CONFIGS, enough=enough)
    while len(tried) < until and not enough.reached:
        batch: list[int] = []
        while not enough.full(len(batch)) and (index := guarded.ask()) is not None:
            batch.append(index)
        if not batch:
            break
        for index in reversed(batch):
            guarded.tell(index, latency[index], "" if latency[index] else "timeout")
        tried += batch
    return enough, tried


def better_is_left(latency: dict[int, float | None], tried: list[int]) -> bool:
    return min(filter(None, latency.values())) < BETTER * min(ms for index in tried if (ms := latency[index]))


def test_the_chance_is_about_how_often_a_better_one_is_left() -> None:
    """It takes the errors' mean as known and their tails as normal, so that it is up to three times too small."""
    for deviation, n_tried in ((0.1, 6), (0.15, 8)):
        said, true = 0.0, 0
        for seed in range(200):
            latency, model = drawn(seed, deviation), Bayesian(Searched(CONFIGS, prior=PRIOR))
            for index in ORDER[:n_tried]:
                model.tell(index, latency[index])
            chances = model.chances(BETTER, ORDER[:n_tried])
            assert chances is not None and len(chances) == len(CONFIGS) - n_tried
            said += 1 - math.prod(1 - chance for chance in chances)
            true += better_is_left(latency, ORDER[:n_tried])
        assert said < true < 3 * said and true > 10


@pytest.mark.parametrize("strategy", ["bayesian", "prior"])
@pytest.mark.parametrize(("deviation", "alike"), [(0.0, True), (0.05, True), (0.1, True), (0.05, False)])
def test_what_it_leaves_is_hardly_better(deviation: float, alike: bool, strategy: str) -> None:
    missed, counts = 0, []
    for seed in range(40):
        latency = drawn(seed, deviation, alike=alike)
        enough, tried = told(latency, strategy)
        assert enough.reached and enough.chance < LIKELY
        counts.append(len(tried))
        missed += better_is_left(latency, tried)
    assert missed <= 4 and min(counts) == FIRST
    assert deviation > 0 or max(counts) == FIRST


def test_errors_that_scatter_leave_more_to_try() -> None:
    of_each = [sum(len(told(drawn(seed, d))[1]) for seed in range(20)) for d in (0.05, 0.15, 0.4)]
    assert of_each == sorted(of_each) and 1.5 * of_each[0] < of_each[-1]


def test_where_all_fails_there_is_no_chance_to_tell() -> None:
    enough, _ = told(dict.fromkeys(CONFIGS), until=60)
    assert not enough.reached and enough.chance == 1.0


def test_failures_scatter_no_errors() -> None:
    latency = drawn(3, 0.0)
    failing = {index: None if index in ORDER[3:6] else ms for index, ms in latency.items()}
    assert len(told(failing)[1]) == len(told(latency)[1]) == FIRST


def test_the_order_within_a_batch_makes_no_difference_and_a_second_outcome_ends_no_batch() -> None:
    latency, searched = drawn(1, 0.1), Searched(CONFIGS, prior=PRIOR)
    one, other = (Enough(make_strategy("bayesian", searched), searched) for _ in range(2))
    for number in range(FIRST):
        one.tell(ORDER[number], latency[ORDER[number]])
        for _ in range(3):
            other.tell(ORDER[FIRST - 1 - number], latency[ORDER[FIRST - 1 - number]])
    assert (one.reached, one.chance) == (other.reached, pytest.approx(other.chance))
    assert [one.full(n) for n in range(9)] == [other.full(n) for n in range(9)]


def test_a_strategy_is_asked_no_more_once_it_is_enough() -> None:
    searched = Searched(CONFIGS, prior=PRIOR)
    own = make_strategy("bayesian", searched)
    strategy = Guarded(own, CONFIGS, enough=Enough(own, searched))
    asked = []
    while not strategy.full(len(asked), workers=16):
        asked.append(strategy.ask())
    assert len(asked) == FIRST and asked[0] == ORDER[0]
    for index in asked:
        assert index is not None
        strategy.tell(index, 2 * PRIOR[index])
    assert strategy.enough is not None and strategy.enough.reached and strategy.ask() is None
