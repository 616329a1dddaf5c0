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


class Exhaustive:
    """Every candidate, in the space's order."""

    name = "exhaustive"

    def __init__(self, total: int, seed: int = 0) -> None:
        self._next, self._total = 0, total

    def ask(self) -> int | None:
        if self._next == self._total:
            return None
        self._next += 1
        return self._next - 1

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
