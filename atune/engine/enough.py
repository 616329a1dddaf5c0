"""When a search with the budget ``auto`` has tried enough: once a whole batch brought nothing better."""

from __future__ import annotations

import math

BETTER = 0.98
"""A batch brought something better if one of it takes less than this share of the time of the best before."""
BATCH = 8
"""Candidates that are tried before the first decision, and then before each next one."""


class Enough:
    """Lets candidates be proposed in batches, and decides after each whether there is another.

    What it decides depends only on the outcomes of whole batches: of the same ones a resumed run decides the same.
    """

    def __init__(self) -> None:
        self._latencies = dict[int, float]()
        """Of all that were tried; infinite for those that failed."""
        self._best, self._until = math.inf, BATCH
        self.reached = False
        """Whether enough is tried."""

    def full(self, outstanding: int) -> bool:
        """Tell whether to wait for the outcomes of a batch, of which so many are outstanding."""
        return outstanding > 0 and len(self._latencies) + outstanding >= self._until

    def tell(self, index: int, latency_ms: float | None) -> None:
        """Learn an outcome, and decide if it is the last of a batch."""
        self._latencies[index] = math.inf if latency_ms is None else latency_ms
        if self.reached or len(self._latencies) < self._until:
            return
        before, self._best = self._best, min(self._latencies.values())
        self.reached = self._best < math.inf and self._best >= BETTER * before
        self._until += BATCH
