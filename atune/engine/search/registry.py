"""Makes strategies by name, and chooses the default one."""

from __future__ import annotations

from collections.abc import Callable

from atune.engine.search.fixed_orders import LARGE, AdvisedFirst, Exhaustive, Random, Ranked
from atune.engine.search.interface import Searched, Strategy, check_strategy
from atune.errors import UsageError
from atune.model.settings import Budget


def _forest(searched: Searched) -> Strategy:
    from atune.engine.search.forest import Forest

    return Forest(searched)


AUTO, EXHAUSTIVE, RANDOM, PRIOR, FOREST = "auto", Exhaustive.name, Random.name, Ranked.name, "forest"
MAKERS: dict[str, Callable[[Searched], Strategy]] = {
    EXHAUSTIVE: Exhaustive,
    RANDOM: Random,
    PRIOR: Ranked,
    FOREST: _forest,
}
SHOWN = (AUTO, *MAKERS)
"""The names that a user may give, for messages."""
FEW = 8
"""With budgets of up to this many candidates, learning does not help."""
FEW_RANKED = 16
"""With a prior, budgets of up to this many candidates follow it alone: all are compiled at once."""


def learns(name: str) -> bool:
    """Tell whether the strategy called `name` learns from outcomes, as a user's may; only such take long to answer."""
    return name not in (EXHAUSTIVE, RANDOM, PRIOR)


def check_known(strategy: str | Strategy) -> None:
    """Raise `UsageError` for an unknown name, and for an object that is no strategy. Asks for no library."""
    if not isinstance(strategy, str):
        check_strategy(strategy)
        if strategy.name in SHOWN:
            raise UsageError(f"strategy {strategy.name!r}: atune has a strategy of that name; rename yours")
    elif strategy not in SHOWN:
        raise UsageError(f"strategy {strategy!r} is unknown; there is {', '.join(SHOWN)}, or an object of your own")


def check_name(strategy: str | Strategy) -> None:
    """Raise `UsageError` for what `check_known` refuses, and for a strategy whose library is not installed."""
    check_known(strategy)
    if strategy == FOREST:
        from atune.engine.search.forest import needs

        needs()


def check_given(strategy: str | Strategy | None, *, pipeline: bool) -> None:
    """Raise `UsageError` for a `strategy` that is invalid, is not installed, or cannot learn without `pipeline`."""
    if strategy is None:
        return
    check_name(strategy)
    name = strategy if isinstance(strategy, str) else strategy.name
    if not pipeline and name != AUTO and learns(name):
        raise UsageError(f"strategy {name!r} learns while candidates compile: leave out pipeline=False")


def uses_prior(strategy: str | Strategy, total: int) -> bool:
    """Tell whether a strategy, given itself or by name, uses a prior in a space of `total` candidates."""
    if not isinstance(strategy, str):
        return hasattr(strategy, "begin")
    return strategy != RANDOM and (strategy != EXHAUSTIVE or total > LARGE)


def make_strategy(name: str, searched: Searched) -> Strategy:
    """Return the strategy called `name`. Raises `UsageError` as `check_name` does."""
    check_name(name)
    strategy = MAKERS[name](searched)
    if learns(name) or not searched.advised:  # those that learn begin with the advised ones by themselves
        return strategy
    return AdvisedFirst(strategy, searched.advised)


def chosen(total: int, budget: int | None, *, limited: bool, pipeline: bool = True, prior: bool = False) -> str:
    """Return the name of the strategy that ``auto`` stands for, for a space of `total` candidates.

    `limited`: whether there is any budget. `budget`: how many candidates it admits, if known. `pipeline`: whether
    outcomes come before all is proposed. `prior`: whether there is a prior.
    """
    from atune.engine.search.forest import available

    if not limited or (budget is not None and budget >= total):
        return EXHAUSTIVE
    few = budget is not None and budget <= (FEW_RANKED if prior else FEW)
    if pipeline and not few and available():
        return FOREST
    return PRIOR if prior else RANDOM


def may_be_forest(strategy: str | Strategy | None, budget: Budget, *, pipeline: bool) -> bool:
    """Tell, before the space is known, whether the strategy may be the forest, whose library is slow to import."""
    few = budget.candidates is not None and budget.candidates <= FEW
    return strategy == FOREST or (strategy in (None, AUTO) and pipeline and budget.limited and not few)
