"""Strategies by name, which of them ``auto`` takes, and those that learn nothing: by the prior, or drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any

from atune.engine.strategy import SPREAD, Encoding, Searched, Strategy, by_prior
from atune.errors import UsageError

AUTO, EXHAUSTIVE, RANDOM, PRIOR, BAYESIAN = "auto", "exhaustive", "random", "prior", "bayesian"
WALKED = 64
"""Spaces of more candidates are not walked from end to end, but by the prior."""


class FixedOrder:
    """Every candidate once, in an order that is known from the start."""

    def __init__(self, name: str, order: Iterable[int]) -> None:
        self.name, self._order = name, iter(order)

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


def _random(searched: Searched) -> FixedOrder:
    """Return an order that the seed draws: the first ones spread over the axes."""
    indices = list(searched.configs)
    order = Encoding(list(searched.configs.values())).spread_order(searched.seed)
    begin = list(islice(order, SPREAD))  # the slow part, which is done before the first answer
    return FixedOrder(RANDOM, (indices[position] for position in chain(begin, order)))


def _ranked(searched: Searched) -> FixedOrder:
    """Return the order of the prior's estimates, the best first; then those without one. The seed shuffles equals."""
    shuffled = list(searched.configs)
    random.Random(searched.seed).shuffle(shuffled)
    return FixedOrder(PRIOR, by_prior(shuffled, searched.prior or {}))


def _exhaustive(searched: Searched) -> FixedOrder:
    """Return small spaces in their own order, larger ones as `_ranked` has them.

    Spaces often list their large and costly configurations last, whose compiles would end last.
    """
    large = len(searched.configs) > WALKED
    return FixedOrder(EXHAUSTIVE, iter(_ranked(searched).ask, None) if large else searched.configs)


def _bayesian(searched: Searched) -> Strategy:
    from atune.engine.bayesian import Bayesian  # imports numpy

    return Bayesian(searched)


MAKERS: dict[str, Callable[[Searched], Strategy]] = {
    EXHAUSTIVE: _exhaustive,
    RANDOM: _random,
    PRIOR: _ranked,
    BAYESIAN: _bayesian,
}
SHOWN = (AUTO, *MAKERS)
"""The names that a user may give, for messages."""
FEW = 8
"""With budgets of up to this many candidates, learning does not help without a prior."""


def learns(name: str) -> bool:
    """Tell whether the strategy called `name` learns from outcomes, as a user's may; only such take long to answer."""
    return name not in (EXHAUSTIVE, RANDOM, PRIOR)


def check_given(strategy: str | Strategy | None, *, pipeline: bool = True) -> None:
    """Raise `UsageError` for a `strategy` that is none, or cannot learn without `pipeline`."""
    if strategy is None:
        return
    name: Any = strategy if isinstance(strategy, str) else getattr(strategy, "name", None)
    if isinstance(strategy, str):
        if strategy not in SHOWN:
            raise UsageError(f"strategy {strategy!r} is unknown; there is {', '.join(SHOWN)}, or an object of your own")
    elif isinstance(strategy, type) or not (isinstance(name, str) and name and isinstance(strategy, Strategy)):
        raise UsageError(
            f"strategy {strategy!r}: give a name, or an object with a name (text), ask() and "
            "tell(index, latency_ms, reason)"
        )
    elif name in SHOWN:
        raise UsageError(f"strategy {name!r}: atune has a strategy of that name; rename yours")
    if not pipeline and name != AUTO and learns(name):
        raise UsageError(f"strategy {name!r} learns while candidates compile: leave out pipeline=False")


def uses_prior(strategy: str | Strategy, total: int) -> bool:
    """Tell whether a strategy, given itself or by name, uses a prior in a space of `total` candidates."""
    if not isinstance(strategy, str):
        return hasattr(strategy, "begin")
    return strategy != RANDOM and (strategy != EXHAUSTIVE or total > WALKED)


def make_strategy(name: str, searched: Searched) -> Strategy:
    """Return the strategy called `name`. Raises `UsageError` as `check_given` does."""
    check_given(name)
    return MAKERS[name](searched)


def chosen(total: int, budget: int | None, *, limited: bool, pipeline: bool = True, prior: bool = False) -> str:
    """Return the name of the strategy that ``auto`` stands for, for a space of `total` candidates.

    `limited`: whether there is any budget. `budget`: how many candidates it admits, if known. `pipeline`: whether
    outcomes come before all is proposed. `prior`: whether there is a prior.
    """
    if not limited or (budget is not None and budget >= total):
        return EXHAUSTIVE
    few = budget is not None and budget <= FEW
    if pipeline and (prior or not few):
        return BAYESIAN
    return PRIOR if prior else RANDOM
