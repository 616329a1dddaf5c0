"""The order of proposals: every candidate once, and never another order for a journal that goes on."""

from __future__ import annotations

import itertools
import random

import pytest

from atune.search.choosing import make_order
from atune.search.interface import Strategy
from atune.search.orders import GOLDEN, LARGE, NEIGHBOURHOOD, Exhaustive, Random

SIZES = [0, 1, 5, LARGE, LARGE + 1, LARGE + 8, 100, 288, 1000, 4095, 50_001]


def drained(strategy: Strategy) -> list[int]:
    return list(iter(strategy.ask, None))


def sorted_spread(total: int) -> list[int]:
    """The exhaustive order as journals of the first versions have it: whole lists, sorted."""
    order = list(range(total))
    if total <= LARGE:
        return order
    blocks = [order[i : i + NEIGHBOURHOOD] for i in range(0, total, NEIGHBOURHOOD)]
    ranks = sorted(range(len(blocks)), key=lambda n: n * GOLDEN % 1)
    places = sorted(range(len(blocks)), key=lambda n: ranks[n])
    return [index for n in places for index in blocks[n]]


@pytest.mark.parametrize("total", SIZES)
def test_listed_spaces_keep_the_orders_of_the_first_versions(total: int) -> None:
    assert drained(Exhaustive(total)) == sorted_spread(total)
    shuffled = list(range(total))
    random.Random(3).shuffle(shuffled)
    assert drained(Random(total, 3)) == shuffled


@pytest.mark.parametrize("name", ["exhaustive", "random"])
@pytest.mark.parametrize("total", SIZES)
def test_a_large_spaces_order_has_each_place_once(name: str, total: int) -> None:
    assert sorted(drained(make_order(name, total, 1, listed=False))) == list(range(total))


@pytest.mark.parametrize("name", ["exhaustive", "random"])
def test_the_first_places_of_a_space_without_end_are_spread_over_it(name: str) -> None:
    strategy = make_order(name, 2**62, 1, listed=False)
    first = list(itertools.islice(iter(strategy.ask, None), 800))
    assert len(set(first)) == 800
    assert {place * 10 // 2**62 for place in first} == set(range(10))
