"""Draws that spread over the axes, and what a prior leaves of a space."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import islice

import pytest

from atune.model.grid import AxisValues, Grid, grid_of
from atune.search.choosing import make_order
from atune.search.spread import spread_order, spread_places


@pytest.mark.parametrize("lengths", [[2] * 16, [4] * 8, [16] * 4, [256, 256], [2, 4, 8, 16, 64]])
@pytest.mark.parametrize("listed", [True, False])
def test_ten_of_65536_touch_the_values_of_each_axis_evenly(lengths: list[int], listed: bool) -> None:
    grid = Grid({f"a{i}": range(length) for i, length in enumerate(lengths)})
    configs = [grid.config(place) for place in range(grid.size)] if listed else None
    order = make_order("random", grid.size, 7, listed=listed, configs=configs, grid=None if listed else grid)
    ten = [grid.digits(place) for _ in range(10) if (place := order.ask()) is not None]
    for axis, length in enumerate(lengths):
        counts = Counter(digits[axis] for digits in ten)
        assert len(counts) == min(10, length) and max(counts.values()) == -(-10 // length)


def test_each_place_comes_once_and_the_seed_decides() -> None:
    grid = Grid({"a": range(3), "b": range(50), "c": [None]})
    assert sorted(spread_places(grid, 1)) == list(range(150)) != list(spread_places(grid, 1))
    assert list(spread_places(grid, 1)) != list(spread_places(grid, 2))
    some = [grid.digits(place) for place in range(0, 150, 7)]
    assert sorted(spread_order(some, grid.lengths, 1)) == list(range(len(some)))


def test_constraints_leave_draws_spread() -> None:
    admitted = [digits for digits in itertools.product(range(16), repeat=3) if sum(digits) % 7 == 0]
    ten = [admitted[position] for position in islice(spread_order(admitted, [16] * 3, 0), 10)]
    assert all(len({digits[axis] for digits in ten}) >= 8 for axis in range(3))


def test_a_grid_has_neighbours_and_its_axes_travel_as_data() -> None:
    grid = grid_of([AxisValues.of("a", range(0, 10**9, 2)), AxisValues.of("b", ["x", "y", "z"])])
    assert grid is not None and grid.size == 1_500_000_000
    place = grid.place((5, 0))
    assert grid.config(place) == {"a": 10, "b": "x"} and grid.digits(place) == (5, 0)
    assert [grid.digits(other) for other in grid.neighbours(place)] == [(4, 0), (6, 0), (3, 0), (7, 0), (5, 1), (5, 2)]
