"""Wraps a strategy for the engine and the simulation, and turns its mistakes into one kind of error."""

from __future__ import annotations

import math
import operator
from collections.abc import Container

from atune.errors import StrategyError, name_and_message
from atune.search.interface import Strategy


class Guarded:
    """Forwards calls to `strategy`, and checks the answers.

    `known`: the indices that it may propose. `asked`: those that it has proposed, of earlier parts too.
    """

    def __init__(self, strategy: Strategy, known: Container[int]) -> None:
        self.strategy, self.name = strategy, strategy.name
        self._known = known
        self._asked = set[int]()

    def limit(self, most: int) -> int:
        """Return how many candidates may be outstanding now, `most` at most."""
        try:
            own = getattr(self.strategy, "most_outstanding", most)
            return max(1, min(most, operator.index(own)))
        except Exception as error:
            raise self._wrong("most_outstanding", error) from error

    def ask(self) -> int | None:
        """Return the next index. Raises `StrategyError`."""
        try:
            answer = self.strategy.ask()
        except Exception as error:
            raise self._wrong("ask()", error) from error
        if answer is None:
            return None
        try:
            index = operator.index(answer)
        except TypeError:
            index = -1
        if isinstance(answer, bool) or index not in self._known:
            raise self._said(
                f"ask() returned {answer!r}, which is no candidate's index: return one of the space, or None at the end"
            )
        if index in self._asked:
            raise self._said(f"ask() returned {index} a second time: propose each candidate once")
        self._asked.add(index)
        return index

    def expected_best(self) -> float | None:
        """Return the best latency, ms, that the strategy expects of the space; None if it gives none.

        Raises `StrategyError`.
        """
        expected = getattr(self.strategy, "expected_best", None)
        if expected is None:
            return None
        try:
            answer = expected()
            latency_ms = None if answer is None else float(f"{float(answer):.6g}")
        except Exception as error:
            raise self._wrong("expected_best()", error) from error
        if latency_ms is None or (math.isfinite(latency_ms) and latency_ms > 0):
            return latency_ms
        raise self._said(f"expected_best() returned {answer!r}: return milliseconds, or None")

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Tell of an outcome. Raises `StrategyError`."""
        try:
            self.strategy.tell(index, latency_ms, reason)
        except Exception as error:
            raise self._wrong(f"tell({index}, {latency_ms}, {reason!r})", error) from error

    def _wrong(self, call: str, error: Exception) -> StrategyError:
        return error if isinstance(error, StrategyError) else self._said(f"{call} raised {name_and_message(error)}")

    def _said(self, what: str) -> StrategyError:
        return StrategyError(f"strategy {self.name!r}: {what}. A journal keeps all measurements")
