"""When enough is tried: the chance that the rule reckons with is the one that comes true; batches end it."""

from __future__ import annotations

import random

import pytest

from atune.engine.search.enough import BETTER, FIRST, LIKELY, Enough, chances
from atune.engine.search.interface import Guarded, Searched
from atune.engine.search.strategies import make_strategy

PRIOR = {index: 1.0 + 0.01 * index for index in range(200)}


def drawn(seed: int, deviation: float) -> dict[int, float]:
    """Return latencies about twice the estimates, with errors of a normal distribution."""
    rng = random.Random(seed)
    return {index: 2.0 * ms * rng.lognormvariate(0.0, deviation) for index, ms in PRIOR.items()}


def batches(latency: dict[int, float | None], *, until: int | None = None) -> Enough:
    """Play the prior's order in batches, up to the outcome number `until`."""
    enough, order = Enough(PRIOR, PRIOR), sorted(PRIOR, key=PRIOR.__getitem__)
    while not enough.reached and order and len(order) > len(PRIOR) - (until or len(PRIOR)):
        batch: list[int] = []
        while order and not enough.full(len(batch)):
            batch.append(order.pop(0))
        for index in reversed(batch):
            enough.tell(index, latency[index])
    return enough


@pytest.mark.parametrize("deviation", [0.1, 0.15])
def test_the_chance_is_how_often_a_better_one_is_left(deviation: float) -> None:
    said, true = 0.0, 0
    for seed in range(400):
        latency = drawn(seed, deviation)
        measured, left = {index: latency[index] for index in range(12)}, range(12, 200)
        none = 1.0
        for chance in chances(PRIOR, measured, left) or []:
            none *= 1 - chance
        said += 1 - none
        true += min(latency[index] for index in left) < BETTER * min(measured.values())
    assert true / 400 == pytest.approx(said / 400, abs=0.02) and true > 10


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.1, 0.2])
def test_what_it_leaves_is_hardly_better(deviation: float) -> None:
    missed, tried = 0, []
    for seed in range(60):
        latency = drawn(seed, deviation)
        enough = batches(dict(latency))
        assert enough.reached and enough.chance < LIKELY
        tried.append(len(enough._tried))
        missed += min(latency.values()) < BETTER * min(latency[index] for index in enough._tried)
    assert missed <= 6 and min(tried) >= FIRST
    assert deviation > 0 or max(tried) == FIRST


def test_errors_that_scatter_leave_more_to_try() -> None:
    of_each = [sum(len(batches(dict(drawn(seed, d)))._tried) for seed in range(20)) for d in (0.03, 0.1, 0.3)]
    assert of_each == sorted(of_each) and 2 * of_each[0] < of_each[-1]


def test_too_few_measurements_tell_nothing() -> None:
    failed: dict[int, float | None] = {index: None if index > 1 else 2.0 for index in PRIOR}
    enough = batches(failed, until=60)
    assert not enough.reached and enough.chance == 1.0 and chances(PRIOR, {0: 1.0, 1: 2.0}, [3]) is None


def test_the_order_within_a_batch_makes_no_difference_and_a_second_outcome_ends_no_batch() -> None:
    latency = drawn(1, 0.1)
    one, other = Enough(PRIOR, PRIOR), Enough(PRIOR, PRIOR)
    for index in range(FIRST):
        one.tell(index, latency[index])
        for _ in range(3):
            other.tell(FIRST - 1 - index, latency[FIRST - 1 - index])
    assert (one.reached, one.chance) == (other.reached, pytest.approx(other.chance))
    assert [one.full(n) for n in range(9)] == [other.full(n) for n in range(9)]


def test_a_strategy_is_asked_no_more_once_it_is_enough() -> None:
    searched = Searched({index: {"x": index} for index in PRIOR}, prior=PRIOR)
    strategy = Guarded(make_strategy("prior", searched), PRIOR, enough=Enough(PRIOR, PRIOR))
    asked = []
    while not strategy.full(len(asked), workers=16):
        asked.append(strategy.ask())
    assert asked == list(range(FIRST))
    for index in range(FIRST):
        strategy.tell(index, 2 * PRIOR[index])
    assert strategy.enough is not None and strategy.enough.reached and strategy.ask() is None
