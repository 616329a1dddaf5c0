"""Strategies by name, which of them ``auto`` takes, and those that learn nothing.

These take all of a space in blocks, by a prior, or drawn so that values spread.

Spread draws have each value of each axis about equally often, each candidate once. Each axis is drawn in rounds, as in
a Latin hypercube (McKay, Beckman and Conover, Technometrics 1979). A round has each value once, in a new order. After n
draws, each of an axis' L values has occurred n/L times, rounded. Rounds may fail, because constraints refuse the point
or it was taken before. Then a few candidates are drawn plainly, and the one with the rarest values is taken.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, islice

from atune.engine.search.encoding import Encoding
from atune.engine.search.interface import Searched, Strategy, by_prior, check_strategy
from atune.errors import UsageError
from atune.model.settings import Budget

NEIGHBOURHOOD = 8
"""How many neighbours in the space are proposed in a row, because they may share work."""
LARGE = 64
"""Spaces of more candidates are not walked from end to end."""
GOLDEN = (5**0.5 - 1) / 2
LEADING = 0.1
"""Share of the neighbourhoods that come first by their estimates. The best candidate is nearly always among the prior's
first twentieth (bench/results/strategies_prior5)."""
SPREAD = 4096
"""How many draws are spread. Later ones are plain, because that many cover all axes anyway."""
TRIES = 48
"""If a drawn point is no candidate, the one with the rarest values of this many others replaces it."""


class FixedOrder:
    """Every candidate once, in an order that is known from the start."""

    name: str

    def __init__(self, order: Iterable[int]) -> None:
        self._order = iter(order)

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


class Exhaustive(FixedOrder):
    """Every candidate: small spaces in their own order, larger ones in blocks of neighbours, which share work.

    The blocks with the prior's best estimates come first, so that the winner is likely to be known early. The others
    are spread over the space, because spaces often list their large and costly configurations last: proposing some
    early keeps their compiles from ending last. It also makes early measurements more representative. Steps of the
    golden ratio spread best (Knuth, The Art of Computer Programming, volume 3, 6.4).
    """

    name = "exhaustive"

    def __init__(self, searched: Searched) -> None:
        prior, blocks = searched.prior or {}, dict[int, list[int]]()
        for index in sorted(searched.configs):
            blocks.setdefault(index // NEIGHBOURHOOD, []).append(index)
        numbers = list(blocks)
        if len(searched.configs) > LARGE:
            estimates = {
                block: min(prior[index] for index in members if index in prior)
                for block, members in blocks.items()
                if not prior.keys().isdisjoint(members)
            }
            best = nsmallest(math.ceil(LEADING * len(blocks)), estimates, key=lambda block: (estimates[block], block))
            numbers = list(dict.fromkeys([*best, *(numbers[place] for place in golden_order(len(blocks)))]))
        super().__init__(chain.from_iterable(blocks[block] for block in numbers))


def golden_order(size: int) -> list[int]:
    """Return the numbers below `size` in an order of which any beginning is spread evenly.

    The number at position `k` is the rank of k's multiple of the golden ratio, by its fraction.
    """
    step, one = GOLDEN.as_integer_ratio()
    ranked = sorted(range(size), key=lambda k: k * step % one)
    order = [0] * size
    for rank, position in enumerate(ranked):
        order[position] = rank
    return order


class Random(FixedOrder):
    """Every candidate once, in an order that the seed draws: the first ones spread over the axes."""

    name = "random"

    def __init__(self, searched: Searched) -> None:
        indices = list(searched.configs)
        encoding = Encoding(list(searched.configs.values()))
        order = spread_order(encoding.places, [len(axis.values) for axis in encoding.axes], searched.seed)
        begin = list(islice(order, SPREAD))  # the slow part, which is done before the first answer
        super().__init__(indices[position] for position in chain(begin, order))


class Ranked(FixedOrder):
    """Every candidate by the prior's estimate, the best first; then those without one. The seed shuffles equals."""

    name = "prior"

    def __init__(self, searched: Searched) -> None:
        shuffled = list(searched.configs)
        random.Random(searched.seed).shuffle(shuffled)
        super().__init__(by_prior(shuffled, searched.prior or {}))


def rounds(length: int, seed: str) -> Iterator[int]:
    """Yield positions on an axis, each once a round, in an order that `seed` decides."""
    number = 0
    while True:
        order = list(range(length))
        random.Random(f"{seed} {number}").shuffle(order)
        yield from order
        number += 1


def points(lengths: Sequence[int], seed: int) -> Iterator[tuple[int, ...]]:
    """Yield points of a grid, as digits, without an end; some may come twice."""
    axes = [rounds(length, f"{seed} axis {axis}") for axis, length in enumerate(lengths)]
    while True:
        yield tuple(next(axis) for axis in axes)


def spread_order(places: Sequence[tuple[int, ...]], lengths: Sequence[int], seed: int) -> Iterator[int]:
    """Yield the position of each of `places`, which are digits, once: first spread ones, then the others shuffled.

    Where a drawn point is none of them, because constraints refuse it, one of `TRIES` drawn ones takes its place.
    """
    rng = random.Random(seed)
    left = list(range(len(places)))
    rng.shuffle(left)
    at = {digits: position for position, digits in enumerate(places)}
    seen, counts = set[int](), [Counter[int]() for _ in lengths]

    def met(position: int) -> int:
        """Return how often a position's values were drawn, those of long axes weighing more."""
        place = places[position]
        return sum(count[digit] * length for count, digit, length in zip(counts, place, lengths, strict=True))

    for digits, _ in zip(points(lengths, seed), range(min(SPREAD, len(places) // 4)), strict=False):
        found = at.get(digits)
        if found is None or found in seen:
            drawn = [left[rng.randrange(len(left))] for _ in range(TRIES)]
            found = min((position for position in drawn if position not in seen), key=met, default=None)
        if found is not None:
            seen.add(found)
            for count, digit in zip(counts, places[found], strict=True):
                count[digit] += 1
            yield found
    yield from (position for position in left if position not in seen)


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
    return MAKERS[name](searched)


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
