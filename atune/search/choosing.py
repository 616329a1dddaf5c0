"""Strategies by name, and which one is taken where nobody names one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from atune.errors import UsageError
from atune.model.candidate import Config
from atune.model.grid import Grid
from atune.search.encoding import Encoding
from atune.search.interface import Searched, Strategy, check_strategy
from atune.search.orders import Exhaustive, Random
from atune.search.spread import spread_order, spread_places

if TYPE_CHECKING:
    from atune.search.learner import Learner

AUTO = "auto"
ORDERS: dict[str, type[Exhaustive] | type[Random]] = {"exhaustive": Exhaustive, "random": Random}
"""Strategies that learn nothing: orders of any number of candidates."""
LEARNING = ("local", "evolution", "forest")
"""Strategies that need the space's configurations, and propose by what they were told."""
NAMES = (*ORDERS, *LEARNING)
FEW = 8
"""Candidates of which nothing is learnt that helps to choose the next."""
QUICK = ("exhaustive", "random", "local", "evolution")
"""Strategies that answer within a millisecond or so."""


def check_name(name: str) -> None:
    """Raise `UsageError` for a name that no strategy has, and where what it needs is not installed."""
    if name == "forest":
        from atune.search.forest import needs

        needs()
    elif name not in (*NAMES, AUTO):
        raise UsageError(
            f"strategy {name!r} is unknown; there is {', '.join((AUTO, *NAMES))}, or an object of your own"
        )


def check_given(strategy: str | Strategy | None, *, pipeline: bool) -> None:
    """Raise `UsageError` for what is no strategy, is not installed, or cannot learn as candidates are not measured."""
    if strategy is None:
        return
    if isinstance(strategy, str):
        check_name(strategy)
    else:
        check_strategy(strategy)
        if strategy.name in (AUTO, *NAMES):
            raise UsageError(f"strategy {strategy.name!r}: atune's own has that name; give yours another")
    if not pipeline and strategy not in (AUTO, *ORDERS):
        name = strategy if isinstance(strategy, str) else strategy.name
        raise UsageError(f"strategy {name!r} learns while others compile: leave out pipeline=False (--no-pipeline)")


def make_order(
    name: str,
    total: int,
    seed: int,
    *,
    listed: bool = True,
    configs: Sequence[Config] | None = None,
    grid: Grid | None = None,
) -> Exhaustive | Random:
    """Return an order of `total` candidates by its name.

    `listed`: whether the space is; the order in which a journal's run took a listed space is never another.
    `configs`, or the `grid` of a large space: what a random order spreads over; without them it is plainly drawn, as
    all were before.
    """
    if name == "random" and grid is not None:
        return Random(total, seed, order=spread_places(grid, seed))
    if name == "random" and configs is not None:
        return Random(total, seed, order=_spread(configs, seed))
    return ORDERS[name](total, seed, listed=listed)


def _spread(configs: Sequence[Config], seed: int) -> Iterator[int]:
    """Return positions of `configs`. What takes long is done here: the order is asked for in the event loop."""
    encoding = Encoding(configs)
    order = spread_order(encoding.places, [len(axis.values) for axis in encoding.axes], seed)
    return chain([first] if (first := next(order, None)) is not None else [], order)


def make_learner(name: str, searched: Searched) -> Learner:
    """Return a strategy that learns, by its name. Raises `UsageError` where what it needs is not installed."""
    return _class(name)(searched)


def make_strategy(name: str, searched: Searched) -> Strategy:
    """Return the strategy called `name` over a listed space. Raises `UsageError` as `check_name` does."""
    check_name(name)
    if name == AUTO:
        name = chosen(len(searched.configs), searched.budget, limited=searched.budget is not None)
    if name in ORDERS:
        indices = list(searched.configs)
        order = make_order(name, len(indices), searched.seed, configs=list(searched.configs.values()))
        return _Of(order, indices)
    return make_learner(name, searched)


def chosen(total: int, budget: int | None, *, limited: bool, learns: bool = True) -> str:
    """Return the strategy that ``auto`` stands for, of a space of `total` candidates.

    `limited`: whether there is a budget of any kind, and `budget` how many candidates it admits, where that is known.
    `learns`: whether outcomes come before all is proposed.
    """
    from atune.search.forest import available

    if not limited or (budget is not None and budget >= total):
        return "exhaustive"
    if not learns or (budget is not None and budget <= FEW):
        return "random"
    return "forest" if available() else "evolution"


def _class(name: str) -> Callable[[Searched], Learner]:
    if name == "local":
        from atune.search.local import Local

        return Local
    if name == "evolution":
        from atune.search.evolution import Evolution

        return Evolution
    from atune.search.forest import Forest

    return Forest


class _Of:
    """An order of positions, as one of the indices that stand there."""

    def __init__(self, order: Exhaustive | Random, indices: list[int]) -> None:
        self.name, self._order, self._indices = order.name, order, indices

    def ask(self) -> int | None:
        position = self._order.ask()
        return None if position is None else self._indices[position]

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass
