"""Which axes mattered: shares of the variance that can be computed by hand, and none where nothing is known."""

from __future__ import annotations

import math
import random
from itertools import product
from typing import Any

import pytest

from atune.reporting.importance import LEAST, Importance, importance_of

Points = list[tuple[dict[str, Any], float]]


def grid(log_latency: Any, repeats: int = 1, **axes: list[Any]) -> Points:
    """Return every combination with its latency, `repeats` times."""
    configs = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] * repeats
    return [(config, math.exp(log_latency(**config))) for config in configs]


def found(points: Points) -> Importance:
    importance = importance_of(points)
    assert importance is not None
    return importance


def test_axes_that_add_up_explain_what_they_vary() -> None:
    """The variance of 0, 1, 2 is 2/3, that of 0, 0.5 is 1/16; c changes nothing."""
    points = grid(lambda a, b, c: a + b, 3, a=[0, 1, 2], b=[0, 0.5], c=["x", "y"])
    importance = found(points)
    total = 2 / 3 + 1 / 16
    assert importance.shares == pytest.approx({"a": 2 / 3 / total, "b": 1 / 16 / total, "c": 0.0}, abs=1e-3)
    assert list(importance.shares) == ["a", "b", "c"] and importance.candidates == 36
    assert importance.describe() == ("a 91 %, b 9 %; combinations, other axes and noise 0 % (by 36 candidates)")


def test_what_only_a_combination_decides_is_no_axis_by_itself() -> None:
    importance = found(grid(lambda a, b: float(a == b), 6, a=[0, 1], b=[0, 1]))
    assert importance.shares == {"a": 0.0, "b": 0.0} and importance.unexplained == 1.0
    assert importance.describe() == ""


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_taken_for_an_axis(seed: int) -> None:
    """Eight levels explain a fifth of the variance of 40 random figures by chance."""
    draw = random.Random(seed)
    points = grid(lambda a, b: draw.gauss(0, 1), a=list(range(8)), b=list(range(5)))
    assert sum(found(points).shares.values()) < 0.35
    many = grid(lambda a, b: draw.gauss(0, 1), 50, a=list(range(8)), b=list(range(5)))
    assert sum(found(many).shares.values()) < 0.02


def test_an_axis_that_follows_another_by_chance_of_the_search_is_not_credited() -> None:
    """Searches try the good values of one axis mostly with one value of another, which does nothing itself."""
    points = grid(lambda a, b: float(a), 1, a=[0, 1, 2, 3], b=[0, 1, 2, 3])
    points += grid(lambda a, b: float(a), 10, a=[0], b=[3])
    importance = found(points)
    assert importance.shares["a"] > 0.95 and importance.shares["b"] < 0.01


def test_too_few_candidates_say_nothing() -> None:
    points = grid(lambda a, b: a + b, 10, a=[0, 1], b=[0, 1])
    assert importance_of(points[: LEAST - 1]) is None and importance_of(points[:LEAST]) is not None
    many_values: Points = [({"a": i}, 1.0 + i) for i in range(40)]
    assert importance_of(many_values) is None
    assert importance_of([({"a": 1}, 1.0 + i) for i in range(40)]) is None
    assert importance_of([]) is None


def test_names_that_some_configurations_lack_and_lists_are_values_like_others() -> None:
    points: Points = [({"flags": ["-O2"]} if i % 2 else {}, 1.0 + i % 2) for i in range(40)]
    importance = found(points)
    assert importance.shares == {"flags": 1.0} and importance.candidates == 40
