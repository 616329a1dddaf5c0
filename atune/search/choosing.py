"""Makes strategies by name, and chooses the default one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from atune.errors import UsageError
from atune.model.candidate import Config
from atune.model.grid import Grid
from atune.model.settings import Budget
from atune.search.encoding import Encoding
from atune.search.interface import Searched, Strategy, check_strategy
from atune.search.orders import LARGE, Begun, BestFirst, Exhaustive, Random, Ranked, first_of
from atune.search.spread import spread_order, spread_places

if TYPE_CHECKING:
    from atune.search.learner import Learner

AUTO = "auto"
ORDERS: dict[str, type[Exhaustive] | type[Random]] = {"exhaustive": Exhaustive, "random": Random}
"""Strategies that know nothing about candidates: plain orders."""
PRIOR = Ranked.name
BEST_FIRST = BestFirst.name
UNTAUGHT = (*ORDERS, PRIOR, BEST_FIRST)
"""Strategies that learn nothing from outcomes."""
LEARNING = ("forest",)
"""Strategies that need the space's configurations, and learn from outcomes."""
NAMES = (*UNTAUGHT, *LEARNING)
SHOWN = (AUTO, *NAMES)
"""The names that a user may give, for messages."""
FEW = 8
"""With budgets of up to this many candidates, learning does not help."""
FEW_RANKED = 16
"""With a prior, budgets of up to this many candidates follow it alone: all are compiled at once."""
QUICK = UNTAUGHT
"""Strategies that answer within about a millisecond."""


def check_known(strategy: str | Strategy) -> None:
    """Raise `UsageError` for an unknown name, and for an object that is no strategy. Asks for no library."""
    if not isinstance(strategy, str):
        check_strategy(strategy)
        if strategy.name in SHOWN:
            raise UsageError(f"strategy {strategy.name!r}: atune has a strategy of that name; rename yours")
    elif strategy not in SHOWN:
        raise UsageError(f"strategy {strategy!r} is unknown; there is {', '.join(SHOWN)}, or an object of your own")


def check_name(name: str) -> None:
    """Raise `UsageError` for an unknown strategy, or one whose library is not installed."""
    check_known(name)
    if name == "forest":
        from atune.search.forest import needs

        needs()


def check_given(strategy: str | Strategy | None, *, pipeline: bool, own_prior: bool = False) -> None:
    """Raise `UsageError` for a `strategy` that is invalid, is not installed, or cannot learn without `pipeline`.

    `own_prior`: whether the user gave a prior, which not every strategy uses.
    """
    if strategy is None:
        return
    if isinstance(strategy, str):
        check_name(strategy)
    else:
        check_known(strategy)
    if own_prior and not uses_prior(strategy):
        name = strategy if isinstance(strategy, str) else strategy.name
        others = ", ".join((PRIOR, BEST_FIRST, *LEARNING))
        raise UsageError(f"strategy {name!r} uses no prior: leave out prior=, or take {others}")
    if not pipeline and strategy not in (AUTO, *UNTAUGHT):
        name = strategy if isinstance(strategy, str) else strategy.name
        raise UsageError(f"strategy {name!r} learns while candidates compile: leave out pipeline=False")


def make_order(
    name: str,
    total: int,
    seed: int,
    *,
    listed: bool = True,
    configs: Sequence[Config] | None = None,
    grid: Grid | None = None,
) -> Exhaustive | Random:
    """Return the order called `name` over `total` candidates.

    `listed`: whether the space is listed. The orders of listed spaces never change, because journals depend on them.
    `configs`, or the `grid` of a large space: a random order spreads over their axes. Without them it is a plain
    shuffle, as in older versions.
    """
    if name == "random" and grid is not None:
        return Random(total, seed, order=spread_places(grid, seed))
    if name == "random" and configs is not None:
        return Random(total, seed, order=_spread(configs, seed))
    return ORDERS[name](total, seed, listed=listed)


def _spread(configs: Sequence[Config], seed: int) -> Iterator[int]:
    """Yield positions of `configs`. Does the slow work at once, because later items are taken in the event loop."""
    encoding = Encoding(configs)
    order = spread_order(encoding.places, [len(axis.values) for axis in encoding.axes], seed)
    return chain([first] if (first := next(order, None)) is not None else [], order)


def make_learner(name: str, searched: Searched) -> Learner:
    """Return the learning strategy called `name`. Raises `UsageError` if its library is not installed."""
    from atune.search.forest import Forest

    return Forest(searched)


def uses_prior(strategy: str | Strategy) -> bool:
    """Tell whether a strategy, given itself or by name, uses a prior."""
    return strategy not in ORDERS if isinstance(strategy, str) else hasattr(strategy, "begin")


def make_strategy(name: str, searched: Searched) -> Strategy:
    """Return the strategy called `name` over a listed space. Raises `UsageError` as `check_name` does."""
    check_name(name)
    if name == AUTO:
        total, known = len(searched.configs), searched.prior is not None
        name = chosen(total, searched.budget, limited=searched.budget is not None, prior=known)
    if name not in UNTAUGHT:
        return make_learner(name, searched)
    indices = list(searched.configs)
    order: Strategy
    if name == PRIOR:
        order = Ranked(searched)
    elif name == BEST_FIRST:
        order = BestFirst(searched)
    else:
        configs = list(searched.configs.values())
        order = _Of(make_order(name, len(indices), searched.seed, configs=configs), indices)
    return Begun(order, first_of(searched.elsewhere, searched.budget)) if searched.elsewhere else order


def chosen(
    total: int,
    budget: int | None,
    *,
    limited: bool,
    learns: bool = True,
    prior: bool = False,
    own_prior: bool = False,
    listed: bool = True,
) -> str:
    """Return the name of the strategy that ``auto`` stands for, for a space of `total` candidates.

    `limited`: whether there is any budget. `budget`: how many candidates it admits, if known. `learns`: whether
    outcomes come before all is proposed. `prior`: whether there is any prior. `own_prior`: whether the user gave one.
    `listed`: whether the space is listed.
    """
    from atune.search.forest import available

    if not limited or (budget is not None and budget >= total):
        ordered = BEST_FIRST if prior and listed and total > LARGE else "exhaustive"
        return PRIOR if own_prior else ordered
    ranked = own_prior or prior
    if not learns or (budget is not None and budget <= (FEW_RANKED if ranked else FEW)):
        return PRIOR if ranked else "random"
    if available():
        return "forest"
    return PRIOR if ranked else "random"


def may_be_forest(strategy: str | Strategy | None, budget: Budget, *, learns: bool) -> bool:
    """Tell, before the space is known, whether the strategy may be the forest, whose library is slow to import."""
    few = budget.candidates is not None and budget.candidates <= FEW
    return strategy == "forest" or (strategy in (None, AUTO) and learns and budget.limited and not few)


class _Of:
    """Turns an order of positions into an order of the indices at these positions."""

    def __init__(self, order: Exhaustive | Random, indices: list[int]) -> None:
        self.name, self._order, self._indices = order.name, order, indices

    def ask(self) -> int | None:
        position = self._order.ask()
        return None if position is None else self._indices[position]

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass
