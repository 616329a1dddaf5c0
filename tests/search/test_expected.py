"""What strategies expect of the best: a line through what is measured, and nothing where it tells nothing."""

from __future__ import annotations

from typing import Any

import pytest

from atune.engine.search.forest import LEAST_KNOWN as LEAST
from atune.engine.search.forest import expected_latency
from atune.engine.search.interface import Guarded, Searched
from atune.engine.search.registry import make_strategy
from atune.errors import StrategyError

CONFIGS: dict[int, Any] = {10 * i: {"x": i} for i in range(40)}


def latency(index: int) -> float:
    return 1.0 + index / 10


def test_estimates_in_another_unit_and_power_are_brought_to_milliseconds() -> None:
    """Latencies are the square root of the estimates, times three."""
    known = [(float(estimate), 3.0 * estimate**0.5) for estimate in (4, 9, 16, 25, 36, 49, 64, 81)]
    assert expected_latency(known, 1.0) == pytest.approx(3.0)
    assert expected_latency([*known, (float("inf"), 1.0), (0.0, 1.0)], 1.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "known",
    [
        [(1.0 + n, 1.0 + n) for n in range(LEAST - 1)],
        [(1.0 + n, 1.0 / (1 + n)) for n in range(20)],
        [(1.0 + n, 1.0 + 7 * n % 11) for n in range(20)],
        [(1.0, 1.0 + n) for n in range(20)],
        [(1.0 + n, 2.0) for n in range(20)],
    ],
    ids=["too few", "the wrong way round", "no line", "equal estimates", "equal latencies"],
)
def test_nothing_is_expected_where_estimates_tell_nothing(known: list[tuple[float, float]]) -> None:
    assert expected_latency(known, 0.5) is None


@pytest.mark.parametrize("name", ["forest"])
def test_a_prior_lets_expect_the_best_before_it_is_tried(name: str) -> None:
    """Only the slower half is told of; the best takes a millisecond."""
    prior = {index: 5 * latency(index) for index in CONFIGS}
    strategy = make_strategy(name, Searched(CONFIGS, prior=prior))
    guarded = Guarded(strategy, CONFIGS)
    assert guarded.expected_best() is None
    for index in list(CONFIGS)[20:]:
        strategy.tell(index, latency(index))
    assert guarded.expected_best() == pytest.approx(1.0)
    strategy.tell(0, 0.9)
    assert guarded.expected_best() == 0.9
    for index in list(CONFIGS)[1:20]:
        strategy.tell(index, latency(index))
    assert guarded.expected_best() is None


@pytest.mark.parametrize("name", ["exhaustive", "random", "forest"])
def test_without_a_prior_nothing_is_expected(name: str) -> None:
    strategy = make_strategy(name, Searched(CONFIGS))
    for index in list(CONFIGS)[20:]:
        strategy.tell(index, latency(index))
    assert Guarded(strategy, CONFIGS).expected_best() is None


class Expecting:
    name = "expecting"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def ask(self) -> int | None:
        return None

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass

    def expected_best(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [RuntimeError("no idea"), "soon", float("nan"), float("inf"), 0, -1.0])
def test_a_bad_expectation_is_said_in_one_message(answer: Any) -> None:
    with pytest.raises(StrategyError, match=r"strategy 'expecting': expected_best\(\) (raised|returned)"):
        Guarded(Expecting(answer), CONFIGS).expected_best()


def test_a_good_one_is_taken() -> None:
    assert Guarded(Expecting(1), CONFIGS).expected_best() == 1.0
    assert Guarded(Expecting(None), CONFIGS).expected_best() is None
