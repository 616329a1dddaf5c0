"""Orders of a space that learn nothing: all of it, spread, and shuffled."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from itertools import chain, islice

from atune.search.encoding import Encoding
from atune.search.interface import Searched, Strategy, by_prior
from atune.search.spread import SPREAD, spread_order

NEIGHBOURHOOD = 8
"""How many neighbours in the space are proposed in a row, because they may share work."""
LARGE = 64
"""Spaces of more candidates are not walked from end to end."""
GOLDEN = (5**0.5 - 1) / 2
LEADING = 0.1
"""Share of the neighbourhoods that come first by their estimates. The best candidate is nearly always among the prior's
first twentieth (bench/results/strategies_prior5)."""
FIRST = 4
"""Configurations that are tried first on advice, at most; never more than half of the budget."""


class Exhaustive:
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
            places = Spread(len(blocks))
            numbers = list(dict.fromkeys([*best, *(numbers[places[position]] for position in range(len(places)))]))
        self._order = chain.from_iterable(blocks[block] for block in numbers)

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


class Spread:
    """The numbers below `size`, each once, so that those of any beginning are spread evenly. Nothing is listed.

    The number at position `k` is the rank of k's multiple of the golden ratio, by its fraction, among the first `size`
    multiples. Counting the smaller ones is a sum of floors (Graham, Knuth and Patashnik, Concrete Mathematics, 3.5).
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._step, self._one = GOLDEN.as_integer_ratio()
        self._floors = floor_sum(size, self._one, self._step, 0)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: int) -> int:
        fraction = position * self._step % self._one
        return self._floors - floor_sum(self._size, self._one, self._step, -fraction)


def floor_sum(n: int, divisor: int, step: int, start: int) -> int:
    """Return the sum of ``(start + step * i) // divisor`` for i from 0 to n - 1, as fast as Euclid's algorithm."""
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (step // divisor) + n * (start // divisor)
        step, start = step % divisor, start % divisor
        last = step * n + start
        n, start = divmod(last, divisor)
        divisor, step = step, divisor
    return total


class Random:
    """Every candidate once, in an order that the seed draws: the first ones spread over the axes."""

    name = "random"

    def __init__(self, searched: Searched) -> None:
        indices = list(searched.configs)
        encoding = Encoding(list(searched.configs.values()))
        order = spread_order(encoding.places, [len(axis.values) for axis in encoding.axes], searched.seed)
        begin = list(islice(order, SPREAD))  # the slow part, which is done before the first answer
        self._order = (indices[position] for position in chain(begin, order))

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


class Begun:
    """Proposes `first`, then what the strategy proposes beside these."""

    def __init__(self, strategy: Strategy, first: Sequence[int]) -> None:
        self.name, self._strategy = strategy.name, strategy
        self._first, self._begun = deque(first), frozenset(first)

    def ask(self) -> int | None:
        if self._first:
            return self._first.popleft()
        while (index := self._strategy.ask()) in self._begun:
            pass
        return index

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        self._strategy.tell(index, latency_ms, reason)


def first_of(ratios: Mapping[int, float], most: int | None = None) -> list[int]:
    """Return the candidates to try first on advice: the best in other runs, `FIRST` and half of `most` at most."""
    count = FIRST if most is None else min(FIRST, max(1, most // 2))
    return sorted(ratios, key=lambda index: (ratios[index], index))[:count]


class Ranked:
    """Every candidate by the prior's estimate, the best first; then those without one, shuffled by the seed.

    The default configuration comes second, so that the winner can be compared with it. Equals are shuffled, too.
    """

    name = "prior"

    def __init__(self, searched: Searched) -> None:
        shuffled = list(searched.configs)
        random.Random(searched.seed).shuffle(shuffled)
        order = by_prior(shuffled, searched.prior or {})
        default = searched.default
        if default is not None and default in order[1:]:
            order.remove(default)
            order.insert(1, default)
        self._order = iter(order)

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass
