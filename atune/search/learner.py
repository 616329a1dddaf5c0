"""The base of learning strategies: batches that depend only on earlier proposals and outcomes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from atune.search.encoding import Encoding
from atune.search.expected import expected_latency
from atune.search.interface import DUPLICATE, Searched, by_prior
from atune.search.orders import first_of

BATCH = 8
"""How many candidates are proposed at once, without learning in between."""
OF_TOLD = 4
"""For this many known candidates, one more may be outstanding."""


class Learner(ABC):
    """Proposes in batches. A batch depends only on the seed, and on the proposals and outcomes before it.

    Candidates are numbered by their position among `Searched.configs` here; only `ask` and `tell` know indices.
    """

    name: str

    def __init__(self, searched: Searched) -> None:
        self.indices = list(searched.configs)
        self._positions = {index: position for position, index in enumerate(self.indices)}
        self.encoding = Encoding(list(searched.configs.values()))
        self.seed, self.budget = searched.seed, searched.budget
        ranked = by_prior(self.indices, searched.prior) if searched.prior is not None else []
        self.ranked = [self._positions[index] for index in ranked]
        """All candidates by the prior, the best first; empty without one."""
        self._estimates = {} if searched.prior is None else searched.prior
        self.advised = [self._positions[index] for index in first_of(searched.elsewhere, searched.budget)]
        """The few that were best elsewhere, the best first."""
        self.asked = dict[int, None]()
        """In order."""
        self.latencies = dict[int, float]()
        self.failures = dict[int, str]()
        """Why those failed that did."""
        self._told = set[int]()
        self._batch = deque[int]()

    @property
    def most_outstanding(self) -> int:
        return max(BATCH, len(self._told) // OF_TOLD)

    @property
    def outstanding(self) -> int:
        return len(self.asked) - len(self._told)

    def ask(self) -> int | None:
        while len(self.asked) < len(self.indices):
            if not self._batch:
                self._batch.extend(dict.fromkeys(self.propose(self._random())))
            candidate = self._batch.popleft()
            if candidate not in self.asked:
                self.asked[candidate] = None
                return self.indices[candidate]
        return None

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        candidate = self._positions.get(index)
        if candidate is None:
            return  # the space does not hold it any more
        self.asked[candidate] = None
        self._told.add(candidate)
        self.latencies.pop(candidate, None)
        self.failures.pop(candidate, None)
        if latency_ms is not None:
            self.latencies[candidate] = latency_ms
        elif reason != DUPLICATE:
            self.failures[candidate] = reason

    def expected_best(self) -> float | None:
        """Return the best latency, ms, that the prior predicts, measured or not; None without a prediction."""
        first = next((candidate for candidate in self.ranked if candidate not in self._told), None)
        if first is None or self.best is None:
            return None
        known = [(self._estimate(candidate), ms) for candidate, ms in self.latencies.items()]
        expected = expected_latency(known, self._estimate(first))
        return None if expected is None else min(expected, self.latencies[self.best])

    def _estimate(self, candidate: int) -> float:
        return float(self._estimates.get(self.indices[candidate], float("inf")))

    @abstractmethod
    def propose(self, rng: random.Random) -> Sequence[int]:
        """Return at least one candidate that was not proposed yet. At least one exists."""

    @property
    def best(self) -> int | None:
        """The fastest so far; of equals the first in the space."""
        return min(self.latencies, key=lambda candidate: (self.latencies[candidate], candidate), default=None)

    def left(self) -> list[int]:
        """Return the candidates not proposed yet, in order."""
        return [candidate for candidate in range(len(self.indices)) if candidate not in self.asked]

    def beginning(self, rng: random.Random, count: int) -> list[int]:
        """Return the first candidates: those best in other runs, and `count` more, chosen independently of them.

        With a prior, all but one of these follow it. Otherwise all are drawn.
        """
        advised = [candidate for candidate in self.advised if candidate not in self.asked]
        if not self.ranked:
            return [*advised, *self.first_drawn(rng, count)]
        best = [candidate for candidate in self.ranked if candidate not in self.asked and candidate not in advised]
        return [*advised, *best[: max(1, count - 1)], *self.drawn(rng, 1)]

    def first_drawn(self, rng: random.Random, count: int) -> list[int]:
        """Draw the first candidates if there is no prior."""
        return self.drawn(rng, count)

    def drawn(self, rng: random.Random, count: int) -> list[int]:
        """Draw up to `count` candidates that were not asked for, without replacement."""
        left = self.left()
        return rng.sample(left, min(count, len(left)))

    def new_neighbours(self, candidate: int) -> list[int]:
        return [other for other in self.encoding.neighbours(candidate) if other not in self.asked]

    def _random(self) -> random.Random:
        return random.Random(f"{self.seed} {len(self.asked)}")
