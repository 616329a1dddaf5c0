"""When a search with the budget ``auto`` has tried enough: a stopping rule from the prior's errors.

Errors are the logarithms of measured latency by estimate. They are taken as independent draws of one normal
distribution, so that the error of a candidate that is left has their mean, and their deviation times sqrt(1 + 1/n): the
predictive distribution of A. Gelman et al., Bayesian Data Analysis, 3rd ed. 2013, 3.2, with normal tails. That one of
these is better is the probability of improvement (H. Kushner, J. Basic Eng. 86, 1964), here of any that is left.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping

BETTER, LIKELY = 0.98, 0.05
"""Enough is tried once the chance is below `LIKELY` that a candidate left takes less than `BETTER` of the best's
time."""
LEAST_DEVIATION = 0.03
"""Errors deviate at least so much: the first few are often alike, such as those of nearly equal configurations. Of
0.02, 0.03 and 0.04 the least with which 95 % of the searches on parts of recorded spaces end well, or nearly so."""
FIRST, KNOWN = 8, 3
"""Candidates before the first decision, and errors that it needs. A later batch is as large as all before, at most."""


def chances(prior: Mapping[int, float], latencies: Mapping[int, float], left: Collection[int]) -> list[float] | None:
    """Return, for each of `left`, the chance that it is better than all `latencies`; None where too few are known."""
    errors = [math.log(ms / prior[index]) for index, ms in latencies.items() if prior.get(index, 0.0) > 0]
    if len(errors) < KNOWN:
        return None
    goal = math.log(BETTER * min(latencies.values())) - statistics.fmean(errors)
    deviation = max(statistics.stdev(errors), LEAST_DEVIATION) * math.sqrt(1 + 1 / len(errors))
    return [0.5 * math.erfc((math.log(prior[index]) - goal) / deviation / math.sqrt(2)) for index in left]


class Enough:
    """Lets candidates be proposed in batches, and decides after each whether there is another.

    What it decides depends only on the outcomes, in the order of the batches: a resumed run decides the same.
    `candidates`: those that may be proposed. It knows nothing of those that `prior` has no estimate for.
    """

    def __init__(self, prior: Mapping[int, float], candidates: Collection[int]) -> None:
        self._prior = {index: prior[index] for index in sorted(candidates) if prior.get(index, 0.0) > 0}
        self._tried = dict[int, float | None]()
        self._until = FIRST
        self.reached = False
        """Whether enough is tried."""

    def full(self, outstanding: int) -> bool:
        """Tell whether to wait for the outcomes of a batch, of which so many are outstanding."""
        return outstanding > 0 and len(self._tried) + outstanding >= self._until

    def tell(self, index: int, latency_ms: float | None) -> None:
        """Learn an outcome, and decide if it is the last of a batch."""
        self._tried[index] = latency_ms
        if self.reached or len(self._tried) < self._until:
            return
        chance, count = self._judge(self._until)
        self.reached = chance < LIKELY
        self._until += count

    @property
    def chance(self) -> float:
        """The chance that one of those not tried is better than the best; 1 where too few were measured."""
        return self._judge(0)[0]

    def _judge(self, most: int) -> tuple[float, int]:
        """Return the chance, and how many of the best estimated to try, `most` at most, until it is small enough."""
        left = sorted((index for index in self._prior if index not in self._tried), key=self._prior.__getitem__)
        measured = {index: ms for index, ms in self._tried.items() if ms is not None}
        found = chances(self._prior, measured, left)
        if found is None:
            return 1.0, most
        none, enough = 1.0, len(left)
        for chance in reversed(found):
            none *= 1.0 - chance
            enough -= 1.0 - none < LIKELY
        return 1.0 - none, min(most, enough)
