"""Strategies by themselves: same seed, same tells, same asks; good ones soon; bad ones refused in one message."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from atune.engine import strategy as choosing
from atune.engine.strategy import MAKERS, Encoding, Guarded, Searched, Strategy, check_given, chosen, make_strategy
from atune.errors import StrategyError, UsageError
from atune.model.candidate import Config

CONFIGS: dict[int, Config] = {
    10 * i: {"tile": tile, "stages": stages, "policy": policy, "swizzle": swizzle}
    for i, (tile, stages, policy, swizzle) in enumerate(
        (tile, stages, policy, swizzle)
        for tile in (16, 32, 64, 128, 256, 512)
        for stages in range(5)
        for policy in ("row", "column", None)
        for swizzle in (True, False)
        if tile * stages <= 1024
    )
}
"""Indices are not positions: a space that has grown has gaps."""
BEST: Config = {"tile": 128, "stages": 3, "policy": "column", "swizzle": True}


def latency_of(config: Config) -> float | None:
    if config["tile"] == 512 and config["stages"] > 1:
        return None
    far = abs(config["tile"].bit_length() - 8) + abs(config["stages"] - 3)
    return 1.0 + 0.3 * far + 0.2 * (config["policy"] != "column") + 0.1 * (not config["swizzle"])


def outcome_of(index: int) -> tuple[int, float | None, str]:
    latency = latency_of(CONFIGS[index])
    return index, latency, "" if latency is not None else "timeout"


def play(strategy: Strategy | Guarded, tries: int, behind: int = 3) -> Iterator[tuple[str, Any]]:
    """Ask and tell with `behind` candidates outstanding, and yield each call."""
    outstanding: list[int] = []
    for _ in range(tries):
        index = strategy.ask()
        if index is None:
            return
        yield "ask", index
        outstanding.append(index)
        if len(outstanding) > behind:
            yield "tell", (outcome := outcome_of(outstanding.pop(0)))
            strategy.tell(*outcome)


def made(name: str, seed: int = 0, **options: Any) -> Strategy:
    return make_strategy(name, Searched(CONFIGS, seed, **options))


@pytest.mark.parametrize("name", MAKERS)
def test_same_seed_and_same_tells_ask_the_same(name: str) -> None:
    one, other = (list(play(made(name, 5, budget=30), 20)) for _ in range(2))
    assert one == other
    if name != "exhaustive":
        assert one != list(play(made(name, 6, budget=30), 20))


def test_exhaustive_takes_a_small_space_in_its_order_and_a_large_one_by_the_estimates() -> None:
    configs: dict[int, Config] = {index: {"x": index} for index in range(200)}
    prior = {index: float(index % 50) for index in configs if index % 3}
    order, small = (
        list(iter(make_strategy("exhaustive", Searched(some, 0, prior=prior)).ask, None))
        for some in (configs, dict(islice(configs.items(), 64)))
    )
    assert sorted(order) == list(configs) and small == list(range(64))
    assert [prior.get(index, 99.0) for index in order] == sorted(prior.get(index, 99.0) for index in configs)


@pytest.mark.parametrize("name", MAKERS)
def test_everything_is_asked_for_once_what_is_advised_first_and_then_nothing(name: str) -> None:
    few = dict(islice(CONFIGS.items(), 60))
    searched = Searched(few, 0, 40, advised=[*few][10:14])
    strategy = Guarded(make_strategy(name, searched), few, searched.first)
    asked = [what for call, what in play(strategy, 10_000) if call == "ask"]
    assert sorted(asked) == sorted(few) and asked[:4] == searched.first


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("configs", [{}, {7: {}}, {7: {"x": 1}}, {0: {"x": 1}, 1: {"x": None}, 2: {"y": (1, 2)}}])
def test_spaces_with_next_to_nothing_to_choose_from(name: str, configs: dict[int, Config]) -> None:
    strategy = make_strategy(name, Searched(configs))
    asked = []
    while (index := strategy.ask()) is not None:
        asked.append(index)
        strategy.tell(index, None, "compile")
    assert sorted(asked) == sorted(configs)


def test_a_prior_orders_the_first_batch() -> None:
    prior = {index: latency_of(config) or float("nan") for index, config in CONFIGS.items()}
    asked = made("bayesian", prior=prior).ask()
    assert asked is not None and CONFIGS[asked] == BEST
    rank = {index: 1.5**rank for rank, index in enumerate(CONFIGS)}
    searched = Searched(CONFIGS, prior=rank, advised=[50, 60])
    strategy = Guarded(make_strategy("bayesian", searched), CONFIGS, searched.first)
    assert [strategy.ask() for _ in range(7)] == [50, 60, 0, 10, 20, 30, 40]


def test_with_a_prior_near_copies_of_the_first_wait_and_its_errors_are_learned() -> None:
    """The prior is wrong of one value: candidates with it are half as fast as it has them, which two of them show."""
    configs: dict[int, Config] = dict(enumerate({"way": way, "copy": copy} for way in "abcd" for copy in range(8)))
    prior = {index: 1.0 + 0.02 * "abcd".index(str(config["way"])) for index, config in configs.items()}
    strategy, asked = make_strategy("bayesian", Searched(configs, 0, 16, prior=prior)), list[int]()
    for _ in range(8):
        index = strategy.ask()
        assert index is not None
        asked.append(index)
    assert len({configs[index]["way"] for index in asked[:4]}) >= 2 and configs[asked[0]]["way"] == "a"
    for index in asked:
        strategy.tell(index, prior[index] * (2 if configs[index]["way"] == "a" else 1))
    assert all(configs[index or 0]["way"] != "a" for index in (strategy.ask() for _ in range(8)))


@pytest.mark.parametrize("prior", [False, True])
def test_neighbours_of_what_failed_to_lower_come_last(prior: bool) -> None:
    configs: dict[int, Config] = {10 + x + 8 * y: {"x": x, "y": y} for x in range(8) for y in range(8)}
    estimates = {index: float(index) for index in configs} if prior else None
    strategy = make_strategy("bayesian", Searched(configs, 0, prior=estimates))
    for index in (28, 30, 63):
        strategy.tell(index, 1.0)
    strategy.tell(37, None, "lower")
    strategy.tell(44, None, "compile")  # another reason
    rest = list(iter(strategy.ask, None))
    assert set(rest[-4:]) == {29, 36, 38, 45} and len(rest) == 64 - 5  # a step in x, a step in y


def test_the_process_learns_what_fails_next_to_the_best() -> None:
    """The larger a candidate the faster, until it fails. Drawn blindly, half of the candidates would fail."""
    configs: dict[int, Config] = dict(enumerate({"x": x, "y": y} for x in range(1, 21) for y in range(1, 21)))
    strategy, sizes = make_strategy("bayesian", Searched(configs, 0, 80)), list[int]()
    for _ in range(80):
        index = strategy.ask()
        assert index is not None
        sizes.append(size := sum(configs[index].values()))
        strategy.tell(index, None if size > 21 else 1.0 / size, "compile" if size > 21 else "")
    assert sum(size > 21 for size in sizes[40:]) <= 16 and 21 in sizes


def test_each_candidate_comes_once_and_constraints_leave_draws_spread() -> None:
    digits = [each for each in itertools.product(range(16), repeat=3) if sum(each) % 7 == 0]
    encoding = Encoding([dict(zip("abc", each, strict=True)) for each in digits])
    orders = [list(encoding.spread_order(seed)) for seed in (1, 1, 2)]
    assert sorted(orders[0]) == list(range(len(digits))) and orders[0] == orders[1] != orders[2]
    ten = [digits[candidate] for candidate in orders[0][:10]]
    assert all(len({each[axis] for each in ten}) >= 8 for axis in range(3))


@pytest.mark.parametrize(("budget", "most"), [(9, 4), (24, 6), (41, 10), (60, 24), (400, 32), (None, 16)])
def test_under_a_small_budget_the_process_learns_before_most_is_asked_for(budget: int | None, most: int) -> None:
    assert Guarded(made("bayesian", budget=budget), CONFIGS).limit(32) == most


def test_values_that_all_failed_alike_come_last() -> None:
    """Also where the prior likes them; a value of which one works, or which fails in two ways, is no such value."""
    configs: dict[int, Config] = dict(enumerate({"x": x, "way": way} for x in range(30) for way in "abc"))
    for prior in (None, {index: 1.0 + (config["way"] != "a") for index, config in configs.items()}):
        strategy, order = make_strategy("bayesian", Searched(configs, 0, 80, prior=prior)), list[str]()
        while (index := strategy.ask()) is not None:
            config = configs[index]
            order.append(config["way"])
            reason = "timeout" if config["way"] == "a" else ("compile" if config["x"] % 2 else "mismatch")
            strategy.tell(index, None if config["way"] != "c" else 1.0, "" if config["way"] == "c" else reason)
        assert len(order) == len(configs) and order[-20:] == ["a"] * 20


def test_a_large_space_is_searched_in_little_time() -> None:
    configs: dict[int, Config] = {
        i: {"a": i % 10, "b": i // 10 % 10, "c": i // 100 % 10, "d": i // 1000} for i in range(20_000)
    }
    strategy, far = make_strategy("bayesian", Searched(configs, 0, 700)), list[int]()
    began = time.process_time()
    for _ in range(700):  # more than a process knows at once
        index = strategy.ask()
        assert index is not None
        far.append(sum(abs(value - 7) for value in configs[index].values()))
        strategy.tell(index, 1.0 + far[-1])
    assert time.process_time() - began < 700 * 0.02 and 0 in far and len(strategy.asked) == 700  # type: ignore[attr-defined]


class Bad:
    """A user's strategy that answers `answers` in turn."""

    name = "bad"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def ask(self) -> Any:
        return self.answers.pop(0)

    def tell(self, *outcome: Any) -> None: ...


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((3,), r"ask\(\) returned 3, which is not a candidate's index"),
        (("0",), "returned '0', which is no"),
        ((True,), "returned True, which is no"),
    ],
)
def test_a_bad_strategy_is_refused_in_one_message(answers: tuple[Any, ...], message: str) -> None:
    guarded = Guarded(Bad(*answers), CONFIGS)
    with pytest.raises(StrategyError, match=f"strategy 'bad': .*{message}"):
        for _ in answers:
            guarded.ask()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Bad, "give a name, or an object with a name"),
        (type("Named", (Bad,), {"name": "bayesian"})(), "atune has a strategy with this name"),
    ],
)
def test_what_is_no_strategy_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_given(given)


def test_auto_takes_what_fits_the_budget() -> None:
    assert chosen(65, None, limited=False, prior=True) == "exhaustive"
    assert chosen(1000, None, limited=False) == "exhaustive"
    assert chosen(1000, 1000, limited=True) == "exhaustive"
    assert chosen(1000, 100, limited=True) == "bayesian" == chosen(1000, None, limited=True)
    assert chosen(1000, choosing.FEW_CANDIDATES, limited=True) == "random"
    assert chosen(10**9, 100, limited=True) == "bayesian" and chosen(10**9, 8, limited=True) == "random"
    assert chosen(1000, 100, limited=True, pipeline=False) == "random"
