"""Draws that spread over the axes, and what a prior leaves of a space."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import islice

import pytest

from atune.engine.search.fixed_orders import spread_order


@pytest.mark.parametrize("lengths", [[2] * 16, [4] * 8, [16] * 4, [256, 256], [2, 4, 8, 16, 64]])
def test_ten_of_65536_touch_the_values_of_each_axis_evenly(lengths: list[int]) -> None:
    points = list(itertools.product(*map(range, lengths)))
    ten = [points[position] for position in islice(spread_order(points, lengths, 7), 10)]
    for axis, length in enumerate(lengths):
        counts = Counter(digits[axis] for digits in ten)
        assert len(counts) == min(10, length) and max(counts.values()) == -(-10 // length)


def test_each_place_comes_once_and_the_seed_decides() -> None:
    some = [(a, b, 0) for a in range(3) for b in range(50)][::7]
    orders = [list(spread_order(some, [3, 50, 1], seed)) for seed in (1, 1, 2)]
    assert sorted(orders[0]) == list(range(len(some))) and orders[0] == orders[1] != orders[2]


def test_constraints_leave_draws_spread() -> None:
    admitted = [digits for digits in itertools.product(range(16), repeat=3) if sum(digits) % 7 == 0]
    ten = [admitted[position] for position in islice(spread_order(admitted, [16] * 3, 0), 10)]
    assert all(len({digits[axis] for digits in ten}) >= 8 for axis in range(3))
