"""Which candidate next: ask and tell, by index into the space."""

from __future__ import annotations

import random
from typing import Protocol

from atune.errors import UsageError


class Strategy(Protocol):
    """Proposes candidates. `ask` and `tell` are called from one task, never at the same time."""

    name: str

    def ask(self) -> int | None:
        """Return the index to try next, each at most once, or None when there is nothing more to propose."""
        ...

    def tell(self, index: int, latency_ms: float | None) -> None:
        """Learn a candidate's latency; None when it failed, was pruned, or duplicates another."""
        ...


NEIGHBOURHOOD = 8
"""Candidates that follow each other in the space and are proposed in a row: they may share work."""
LARGE = 64
"""Spaces of more candidates are not walked from end to end."""
GOLDEN = (5**0.5 - 1) / 2


class Exhaustive:
    """Every candidate: small spaces in their own order, large ones spread over the space, neighbours together.

    Spaces mostly list their large and costly configurations last. Met early, their compiles do not end last, and what
    is measured so far tells more of what is to come. Steps of the golden ratio spread best (Knuth, The Art of Computer
    Programming, volume 3, 6.4).
    """

    name = "exhaustive"

    def __init__(self, total: int, seed: int = 0) -> None:
        self._order = list(range(total))
        if total > LARGE:
            blocks = [self._order[i : i + NEIGHBOURHOOD] for i in range(0, total, NEIGHBOURHOOD)]
            ranks = sorted(range(len(blocks)), key=lambda n: n * GOLDEN % 1)
            places = sorted(range(len(blocks)), key=lambda n: ranks[n])
            self._order = [index for n in places for index in blocks[n]]
        self._order.reverse()

    def ask(self) -> int | None:
        return self._order.pop() if self._order else None

    def tell(self, index: int, latency_ms: float | None) -> None:
        pass


class Random:
    """Every candidate once, in an order that depends on the seed alone. Pays under a budget."""

    name = "random"

    def __init__(self, total: int, seed: int = 0) -> None:
        self._order = list(range(total))
        random.Random(seed).shuffle(self._order)
        self._order.reverse()

    def ask(self) -> int | None:
        return self._order.pop() if self._order else None

    def tell(self, index: int, latency_ms: float | None) -> None:
        pass


STRATEGIES: dict[str, type[Exhaustive] | type[Random]] = {"exhaustive": Exhaustive, "random": Random}


def make_strategy(name: str, total: int, seed: int) -> Strategy:
    """Return the strategy called `name` over `total` candidates. Raises `UsageError` for an unknown name."""
    if name not in STRATEGIES:
        raise UsageError(f"strategy {name!r} is unknown; there is {', '.join(STRATEGIES)}")
    return STRATEGIES[name](total, seed)
