"""When a search with the budget ``auto`` has tried enough: a stopping rule from the prior's errors.

It ends once the best is likely enough to be near the best of all (J. Wilson, Stopping Bayesian Optimization with
Probabilistic Regret Bounds, NeurIPS 2024). `Bayesian` predicts the errors. The chance that any candidate left is better
is reckoned as if their errors were independent, which is too much (D. Slepian, Bell System Technical Journal 41, 1962),
and with normal tails, which is too little.
"""

from __future__ import annotations

from atune.engine.search.bayesian import Bayesian
from atune.engine.search.interface import Searched, Strategy

BETTER, LIKELY = 0.98, 0.05
"""Enough is tried once the chance is below `LIKELY` that a candidate left takes less than `BETTER` of the best's
time."""
FIRST = 8
"""Candidates before the first decision. A later batch is as large as all before, at most."""


class Enough:
    """Lets candidates be proposed in batches, and decides after each whether there is another.

    What it decides depends only on the outcomes of whole batches: of the same ones a resumed run decides the same.
    The chance is by what `strategy` has learned of the prior's errors. One that learns nothing has a model beside it.
    """

    def __init__(self, strategy: Strategy, searched: Searched) -> None:
        self._model = strategy if isinstance(strategy, Bayesian) else Bayesian(searched)
        self._tried = set[int]()
        self._until = FIRST
        self.reached = False
        """Whether enough is tried."""

    def full(self, outstanding: int) -> bool:
        """Tell whether to wait for the outcomes of a batch, of which so many are outstanding."""
        return outstanding > 0 and len(self._tried) + outstanding >= self._until

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Learn an outcome, and decide if it is the last of a batch."""
        self._model.tell(index, latency_ms, reason)
        self._tried.add(index)
        if self.reached or len(self._tried) < self._until:
            return
        chance, count = self._judge(self._until)
        self.reached = chance < LIKELY
        self._until += count

    @property
    def chance(self) -> float:
        """The chance that one of those not tried is better than the best; 1 where nothing was measured."""
        return self._judge(0)[0]

    def _judge(self, most: int) -> tuple[float, int]:
        """Return the chance, and how many of the likeliest to try, `most` at most, until it is small enough."""
        chances = self._model.chances(BETTER, self._tried)
        if chances is None:
            return 1.0, most
        none, enough = 1.0, len(chances)
        for chance in sorted(chances):
            none *= 1.0 - chance
            enough -= 1.0 - none < LIKELY
        return 1.0 - none, min(most, enough)
