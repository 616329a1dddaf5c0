"""The strategy's protocol, what it is given to know about the space, and the checks of its answers."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from atune.errors import StrategyError, name_and_message
from atune.journal.events import CandidateMeasured
from atune.journal.state import State
from atune.model.candidate import Config

AHEAD = 2
"""How many candidates for each compile worker a learning strategy may have outstanding."""
DUPLICATE = "duplicate"
"""The reason of a candidate that compiles to the same code as another: that one has the latency. It did not fail."""


@runtime_checkable
class Strategy(Protocol):
    """Proposes candidates by index. No two of its methods are ever called at the same time.

    A resumed run tells a new object all earlier outcomes before it asks, also of candidates that this object did not
    propose. What it proposes of these is passed over. Two attributes are optional. `begin` gets the `Searched` before
    any other call. `most_outstanding`, an int, is how many proposed candidates may lack an outcome at that moment.
    """

    name: str

    def ask(self) -> int | None:
        """Return the index to try next, each at most once, or None at the end."""
        ...

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Learn a candidate's latency, ms, or None if it has none of its own, for `reason`.

        The reason is its kind of failure (such as ``timeout``, ``mismatch`` or ``compile``), ``pruned`` for a device
        limit, or `DUPLICATE`. An outcome may come again; then the new latency counts.
        """
        ...


@dataclass(frozen=True)
class Searched:
    """The space to search, by the candidates' indices: without what failed in the survey, or comes last anyway.

    `budget`: candidates that will be tried at most, where that is known. `prior`: an estimate for each, in milliseconds
    or any other unit in which less is better; those without one come last. `facts`: numbers known of candidates in
    addition to their axes. `default`: the default configuration's index, where the space holds it; it is tried
    first, and then `advised`, those that were the fastest in other runs, whatever the strategy proposes.
    """

    configs: Mapping[int, Config]
    seed: int = 0
    budget: int | None = None
    prior: Mapping[int, float] | None = None
    facts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    default: int | None = None
    advised: Sequence[int] = ()

    @property
    def first(self) -> list[int]:
        """Those that are tried before all others."""
        return [*([] if self.default is None else [self.default]), *self.advised]


def by_prior(indices: Sequence[int], prior: Mapping[int, float]) -> list[int]:
    """Return `indices` by their estimate, the best first; those without one (or NaN) last, in order."""

    def estimate(index: int) -> float:
        value = float(prior.get(index, float("inf")))
        return value if value == value else float("inf")

    return sorted(indices, key=estimate)


class Guarded:
    """Forwards calls of the engine to `strategy`, and checks the answers.

    `known`: the indices that it may propose. `first`: those that come before all that it proposes, such as the default
    configuration. `last`: those that come after all.
    """

    def __init__(
        self, strategy: Strategy, known: Container[int], first: Iterable[int] = (), last: Iterable[int] = ()
    ) -> None:
        self.strategy, self.name = strategy, strategy.name
        self._known, self._first, self._last = known, deque(dict.fromkeys(first)), iter(last)
        self._begun, self._asked, self._ended = frozenset(self._first), set[int](), False

    def limit(self, most: int) -> int:
        """Return how many candidates may be outstanding now, `most` at most."""
        try:
            own = getattr(self.strategy, "most_outstanding", most)
            return max(1, min(most, operator.index(own)))
        except Exception as error:
            raise self._raised("most_outstanding", error) from error

    def ask(self) -> int | None:
        """Return the next index: the first ones, what the strategy proposes besides, the last ones.

        Raises `StrategyError`.
        """
        if self._first:
            return self._first.popleft()
        while (index := self._next()) in self._begun:
            pass
        return index

    def _next(self) -> int | None:
        try:
            answer = None if self._ended else self.strategy.ask()
        except Exception as error:
            raise self._raised("ask()", error) from error
        if answer is None:
            self._ended = True
            return next((index for index in self._last if index not in self._asked), None)
        try:
            index = operator.index(answer)
        except TypeError:
            index = -1
        if isinstance(answer, bool) or index not in self._known:
            raise self._error(
                f"ask() returned {answer!r}, which is no candidate's index: return one of the space, or None at the end"
            )
        if index in self._asked:
            raise self._error(f"ask() returned {index} a second time: propose each candidate once")
        self._asked.add(index)
        return index

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Tell of an outcome. Raises `StrategyError`."""
        try:
            self.strategy.tell(index, latency_ms, reason)
        except Exception as error:
            raise self._raised(f"tell({index}, {latency_ms}, {reason!r})", error) from error

    def _raised(self, call: str, error: Exception) -> StrategyError:
        return error if isinstance(error, StrategyError) else self._error(f"{call} raised {name_and_message(error)}")

    def _error(self, message: str) -> StrategyError:
        return StrategyError(f"strategy {self.name!r}: {message}. A journal keeps all measurements")


def latency_or_reason(state: State, index: int) -> tuple[float | None, str]:
    """Return what strategies get of candidate `index`: its latency, ms, or why it has none of its own.

    The reason is a failure's kind; ``pruned``; or `DUPLICATE`, also while another with its code is still measured.
    """
    outcome = state.outcome(index)
    if outcome is None or state.first(index).index != index:
        return None, DUPLICATE
    if isinstance(outcome, CandidateMeasured):
        return outcome.timing.latency_ms, ""
    return None, getattr(outcome, "kind", "pruned")
