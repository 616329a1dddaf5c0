"""Strategies by themselves: same seed, same tells, same asks; good ones soon; bad ones refused in one message."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from atune.engine.search import forest
from atune.engine.search import strategies as choosing
from atune.engine.search.encoding import Encoding
from atune.engine.search.interface import Guarded, Searched, Strategy
from atune.engine.search.strategies import MAKERS, check_given, chosen, make_strategy, spread_order
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


def play(strategy: Strategy, tries: int, behind: int = 3) -> Iterator[tuple[str, Any]]:
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


@pytest.mark.parametrize("name", list(MAKERS))
def test_same_seed_and_same_tells_ask_the_same(name: str) -> None:
    one, other = (list(play(made(name, 5, budget=30), 36)) for _ in range(2))
    assert one == other
    if name != "exhaustive":
        assert one != list(play(made(name, 6, budget=30), 36))


def asked(strategy: Strategy) -> list[int]:
    return list(iter(strategy.ask, None))


def test_exhaustive_begins_with_the_neighbourhoods_of_the_best_estimates_and_then_takes_all() -> None:
    configs: dict[int, Config] = {index: {"x": index} for index in range(200) if index != 131}
    prior = {index: 5.0 for index in configs if index % 3} | {77: 1.0, 130: 2.0, 129: 2.5, 8: 3.0}
    order = asked(make_strategy("exhaustive", Searched(configs, 0, prior=prior)))
    first = [*range(72, 80), *range(128, 131), *range(132, 136), *range(8, 16)]  # a tenth of 25 blocks, rounded up
    whole: dict[int, Config] = {index: {"x": index} for index in range(200)}
    rest = asked(make_strategy("exhaustive", Searched(whole, 0)))
    assert order == first + [index for index in rest if index not in {*first, 131}]


@pytest.mark.parametrize("name", list(MAKERS))
def test_everything_is_asked_for_once_and_then_nothing(name: str) -> None:
    few = dict(islice(CONFIGS.items(), 60))
    asked = [what for call, what in play(make_strategy(name, Searched(few)), 10_000) if call == "ask"]
    assert sorted(asked) == sorted(few)


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("configs", [{}, {7: {}}, {7: {"x": 1}}, {0: {"x": 1}, 1: {"x": None}, 2: {"y": (1, 2)}}])
def test_spaces_with_next_to_nothing_to_choose_from(name: str, configs: dict[int, Config]) -> None:
    strategy = make_strategy(name, Searched(configs))
    asked = []
    while (index := strategy.ask()) is not None:
        asked.append(index)
        strategy.tell(index, None, "compile")
    assert sorted(asked) == sorted(configs)


def found(seed: int, tries: int) -> bool:
    played = play(made("forest", seed, budget=tries), tries)
    return any(call == "ask" and CONFIGS[what] == BEST for call, what in played)


def test_the_best_of_a_smooth_space_is_found_in_a_third_of_it() -> None:
    """Drawn blindly, a third of the seeds would find it: 3 of 8."""
    assert sum(found(seed, len(CONFIGS) // 3) for seed in range(8)) >= 7


def test_a_prior_orders_the_first_batch() -> None:
    prior = {index: latency_of(config) or float("nan") for index, config in CONFIGS.items()}
    asked = made("forest", prior=prior).ask()
    assert asked is not None and CONFIGS[asked] == BEST


@pytest.mark.parametrize("seed", range(3))
def test_the_forest_learns_what_fails_next_to_the_best(seed: int) -> None:
    """The larger a candidate the faster, until it fails. Drawn blindly, half of the candidates would fail."""
    configs: dict[int, Config] = dict(enumerate({"x": x, "y": y} for x in range(1, 21) for y in range(1, 21)))
    strategy, sizes = make_strategy("forest", Searched(configs, seed, 80)), list[int]()
    for _ in range(80):
        index = strategy.ask()
        assert index is not None
        sizes.append(size := sum(configs[index].values()))
        strategy.tell(index, None if size > 21 else 1.0 / size, "compile" if size > 21 else "")
    assert sum(size > 21 for size in sizes[40:]) <= 16 and 21 in sizes


def test_each_place_comes_once_and_constraints_leave_draws_spread() -> None:
    admitted = [digits for digits in itertools.product(range(16), repeat=3) if sum(digits) % 7 == 0]
    orders = [list(spread_order(admitted, [16] * 3, seed)) for seed in (1, 1, 2)]
    assert sorted(orders[0]) == list(range(len(admitted))) and orders[0] == orders[1] != orders[2]
    ten = [admitted[position] for position in orders[0][:10]]
    assert all(len({digits[axis] for digits in ten}) >= 8 for axis in range(3))


@pytest.mark.parametrize(("budget", "most"), [(12, 4), (29, 4), (48, 6), (64, 8), (400, 8), (None, 8)])
def test_under_a_small_budget_the_forest_learns_before_most_is_asked_for(budget: int | None, most: int) -> None:
    strategy = made("forest", budget=budget)
    assert Guarded(strategy, CONFIGS).limit(32) == most
    for index in list(CONFIGS)[:48]:
        strategy.tell(index, 1.0)
    assert Guarded(strategy, CONFIGS).limit(32) == 12


def test_neighbours_follow_the_order_of_numbers_and_skip_what_constraints_refuse() -> None:
    configs: list[Config] = [{"a": a, "b": b} for a, b in ((16, "x"), (128, "x"), (32, "x"), (32, "y"), (64, "z"))]
    encoding = Encoding(configs)
    assert {configs[n]["a"] for n in encoding.neighbours(2) if configs[n]["b"] == "x"} == {16, 128}
    assert 3 in encoding.neighbours(2) and 4 not in encoding.neighbours(2)
    assert encoding.features.shape == (5, 4)


class Bad:
    """A user's strategy that answers `answers` in turn; an exception is raised."""

    name = "bad"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def ask(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        raise ValueError("no memory of that")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((3,), r"ask\(\) returned 3, which is no candidate's index"),
        (("0",), "returned '0', which is no"),
        ((True,), "returned True, which is no"),
        ((0, 10, 0), "returned 0 a second time"),
        ((RuntimeError("out of ideas"),), r"ask\(\) raised RuntimeError: out of ideas"),
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
        ("best", "strategy 'best' is unknown; there is auto, exhaustive"),
        (Bad, "strategy Bad is a class"),
        (object(), "it has no ask and no tell and no name"),
        (type("Named", (Bad,), {"name": "forest"})(), "atune has a strategy of that name"),
    ],
)
def test_what_is_no_strategy_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_given(given, pipeline=True)


def test_a_strategy_that_learns_needs_to_measure_meanwhile() -> None:
    with pytest.raises(UsageError, match="pipeline=False"):
        check_given("forest", pipeline=False)


def test_without_scikit_learn_the_forest_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "available", lambda: False)
    with pytest.raises(UsageError, match=r"pip install scikit-learn$"):
        check_given("forest", pipeline=True)
    assert chosen(1000, 100, limited=True) == "random" and chosen(1000, 100, limited=True, prior=True) == "prior"


def test_auto_takes_what_fits_the_budget() -> None:
    assert chosen(65, None, limited=False, prior=True) == "exhaustive"
    assert chosen(1000, None, limited=False) == "exhaustive"
    assert chosen(1000, 1000, limited=True) == "exhaustive"
    assert chosen(1000, 100, limited=True) == "forest" == chosen(1000, None, limited=True)
    assert chosen(1000, choosing.FEW, limited=True) == "random"
    assert chosen(10**9, 100, limited=True) == "forest" and chosen(10**9, 8, limited=True) == "random"
    assert chosen(1000, 100, limited=True, pipeline=False) == "random"
