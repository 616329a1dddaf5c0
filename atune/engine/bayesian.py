"""Bayesian optimisation: a Gaussian process predicts the speed of each candidate, and how uncertain the prediction is.
If there is a prior, the process predicts the prior's error for each candidate instead of the speed.

Sources: Jones, Schonlau and Welch, Efficient Global Optimization of Expensive Black-Box Functions (Journal of Global
Optimization 1998), for the expected improvement. Ginsbourger, Le Riche and Carraro, Kriging Is Well-Suited to
Parallelize Optimization (2010), for candidates without an outcome, which are assumed to have their predicted speed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from atune.engine.strategy import DUPLICATE, Encoding, Searched
from atune.model.candidate import failed_values

LEAST_DRAWN, MOST_DRAWN = 4, 8
"""Least and largest number of candidates to draw at first. Within these limits, a quarter of the budget is drawn."""
LEAST_OUTSTANDING = 16
"""With a prior, at least this many candidates may be outstanding."""
SMALL_BUDGET, SMALL_BUDGET_SHARE, BUDGET_SHARE = 48, 0.25, 0.4
"""Shares of a budget's candidates that may be outstanding. The first share is for budgets up to `SMALL_BUDGET`, so that
most proposals can use outcomes. The second is for larger budgets, so that compile workers get whole groups."""
POWER = 2
"""Exponent in a candidate's speed, (fastest latency / own latency) ** `POWER`. A failed candidate has speed 0."""
CHANGE_DECAY, DISTANCE_DECAY = 0.15, 0.35
"""On each axis on which two candidates differ, log similarity falls by a constant plus a factor times the distance."""
NOISE = 1e-3
"""Variance of a measurement, as a share of the variance of all candidates."""
ERROR_DEVIATION, ERROR_WEIGHT = 0.08, 2.0
"""Usual deviation of the prior's logarithmic errors, and the number of observed errors with the same weight (the
conjugate prior of a variance, A. Gelman et al., Bayesian Data Analysis, 3rd ed. 2013, 2.6). The values that fit ten
recorded spaces are 0.075 and 1.6. If any one space is left out, the values are 0.071 to 0.086, and 1.3 to 1.9."""
NO_ESTIMATE, NUDGE = -1e3, 1e-9
"""`NO_ESTIMATE`: value that puts candidates without an estimate last. `NUDGE`: largest random change to break a tie."""
MOST_POOL, MOST_ROWS, RENEW_AFTER = 8192, 512, 64
"""A process considers about `MOST_POOL` candidates at most. A process remembers at most `MOST_ROWS` tried candidates:
the fastest and the latest. After `RENEW_AFTER` candidates, a new process chooses both sets again."""


class Process:
    """A Gaussian process over the candidates in `pool`. The process learns of one candidate after another.

    The process keeps the rows of a Cholesky factor, and the rows of the factor's product with all covariances. Learning
    of one more candidate therefore takes time in proportion to the number of rows times the size of the pool.
    """

    def __init__(self, kernels: Sequence[NDArray[np.float64]], places: NDArray[np.int64], pool: list[int]) -> None:
        self._kernels, self.pool = kernels, pool
        self._columns = places[pool].T.copy()
        self.at = {candidate: number for number, candidate in enumerate(pool)}
        self._factor, self._rows = np.zeros((RENEW_AFTER, RENEW_AFTER)), np.zeros((RENEW_AFTER, len(pool)))
        self.variance = np.ones(len(pool))
        self.learned = dict[int, None]()

    def __contains__(self, candidate: int) -> bool:
        return candidate in self.at

    def learn(self, candidate: int) -> None:
        """Reduce the variance of a candidate that is being tried and has no outcome yet, and of similar candidates."""
        number, count = self.at[candidate], len(self.learned)
        if count == len(self._rows):
            self._factor = np.pad(self._factor, (0, count))
            self._rows = np.pad(self._rows, ((0, count), (0, 0)))
        similarity = np.ones(len(self.pool))
        for kernel, column in zip(self._kernels, self._columns, strict=True):
            similarity *= kernel[column[number]][column]
        before = self._rows[:count, number].copy()
        own = math.sqrt(max(NOISE, 1 + NOISE - float(before @ before)))
        self._factor[count, :count], self._factor[count, count] = before, own
        self._rows[count] = (similarity - _combined(before, self._rows[:count])) / own
        self.variance -= self._rows[count] ** 2
        self.learned[candidate] = None

    def predict(self, values: dict[int, float], weight: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the expected value and the standard deviation of each candidate in the pool, given the known `values`.

        `weight`: the number of observed errors that have the same weight as `ERROR_DEVIATION`.
        """
        known = np.array(list(values.values()) or [0.0])
        middle = float(known.mean())
        residuals = np.zeros(len(self.learned))
        for row, candidate in enumerate(self.learned):
            if candidate in values:
                expected = float(self._factor[row, :row] @ residuals[:row])
                residuals[row] = (values[candidate] - middle - expected) / self._factor[row, row]
        squares = float(residuals @ residuals) + weight * ERROR_DEVIATION**2
        spread = math.sqrt(max(NOISE * (float(known.var()) or 1.0), squares / (len(values) + weight)))
        deviation = spread * np.sqrt(np.maximum(self.variance, NOISE * NOISE))
        return middle + _combined(residuals, self._rows[: len(residuals)]), deviation


class Bayesian:
    """Proposes the candidate with the largest expected improvement. Without a prior, the first candidates are random.

    This class numbers candidates by their position in `Searched.configs`; only `ask` and `tell` use indices.
    """

    name = "bayesian"

    def __init__(self, searched: Searched) -> None:
        self.indices = list(searched.configs)
        self._positions = {index: position for position, index in enumerate(self.indices)}
        self.seed, self.budget = searched.seed, searched.budget
        encoding = self._encoding = Encoding(list(searched.configs.values()))
        self._drawn = encoding.spread_order(searched.seed)
        prior, drawn = searched.prior or {}, random.Random(searched.seed)
        estimates = {at: prior.get(index, 0.0) for index, at in self._positions.items()}
        self._known = {at: NUDGE * drawn.random() - math.log(ms) for at, ms in estimates.items() if 0 < ms < math.inf}
        """The logarithms of estimated speeds. The seed breaks ties."""
        self._trend = np.array([self._known.get(at, NO_ESTIMATE if self._known else 0.0) for at in estimates])
        self._pairs = [tuple(enumerate(place)) for place in encoding.places]
        self._places = np.array(encoding.places, dtype=np.int64).reshape(len(self.indices), len(encoding.axes))
        self._kernels = [_kernel(len(axis.values), ordered=axis.ordered) for axis in encoding.axes]
        self._process: Process | None = None
        self.asked = dict[int, None]()
        """All candidates that `ask` returned, in order."""
        self.latencies = dict[int, float]()
        """Latencies of the candidates with an outcome; infinite for candidates that failed."""
        self._reasons = dict[int, str]()
        """Reasons of failed candidates; empty strings for measured candidates."""
        self._unasked, self._near = np.full(len(self.indices), True), np.zeros(len(self.indices), dtype=np.int32)
        """For each candidate: whether it was not asked for yet, and how many of its neighbours failed to lower."""
        self._postponed: NDArray[np.bool_] | None = None
        """Mask of the candidates to try last; None if a new outcome has made the mask out of date."""
        self._seen, self._most = 0, 0

    @property
    def most_outstanding(self) -> int:
        least = LEAST_OUTSTANDING if self._known else LEAST_DRAWN
        if self.budget is None:
            return max(LEAST_OUTSTANDING, len(self.latencies))
        return max(least, int((SMALL_BUDGET_SHARE if self.budget <= SMALL_BUDGET else BUDGET_SHARE) * self.budget))

    def ask(self) -> int | None:
        if len(self.asked) == len(self.indices):
            return None
        candidate = self._next()
        self._ask_for(candidate)
        return self.indices[candidate]

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        candidate = self._positions.get(index)
        if candidate is None:
            return  # it failed in the survey
        self._ask_for(candidate)
        if latency_ms is None and reason == DUPLICATE:
            return
        self.latencies[candidate] = math.inf if latency_ms is None else latency_ms
        if change := (reason == "lower") - (self._reasons.get(candidate) == "lower"):
            self._near[self._encoding.neighbours(candidate)] += change
        self._reasons[candidate], self._postponed = reason, None

    def _ask_for(self, candidate: int) -> None:
        self.asked[candidate] = None
        self._unasked[candidate] = False

    def _next(self) -> int:
        first = MOST_DRAWN if self.budget is None else max(LEAST_DRAWN, min(MOST_DRAWN, self.budget // 4))
        early = len(self.asked) < first or min(self.latencies.values(), default=math.inf) == math.inf
        if self._postponed is None:
            self._postponed = self._find_postponed()
        good = self._unasked & ~self._postponed
        if not good.any():
            good = self._unasked
        process = self._updated_process() if self._known or not early else None
        if process is None or not good[process.pool].any():
            return next(candidate for candidate in self._drawn if self._unasked[candidate])
        scores = improvement(*self._predict(process))
        scores[~good[process.pool]] = -1.0
        return process.pool[int(scores.argmax())]

    def _find_postponed(self) -> NDArray[np.bool_]:
        """Return a mask of the candidates to try last: neighbours of candidates that failed to lower, and candidates
        with a bad value of an axis. A value is bad if all tried candidates with this value failed in the same way."""
        last: NDArray[np.bool_] = self._near > 0
        reasons = self._reasons if any(self._reasons.values()) else {}
        for axis, value in failed_values((self._pairs[candidate], why) for candidate, why in reasons.items()):
            last |= self._places[:, axis] == value
        return last

    def _predict(self, process: Process) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return the expected speeds of the candidates in the pool, the speeds' deviations, and the best known speed.

        With a prior, speeds are logarithms, the process predicts the prior's errors, and a failure has the worst error.
        """
        latencies = {at: ms for at, ms in self.latencies.items() if at in process.learned}
        fastest = min(latencies.values(), default=math.inf)
        if not self._known:
            values = {at: (fastest / ms) ** POWER for at, ms in latencies.items()}
            return *process.predict(values, 0.0), 1.0
        errors = {at: -math.log(ms) - self._known[at] for at, ms in latencies.items() if at in self._known}
        worst = min((error for error in errors.values() if error > -math.inf), default=0.0)
        expected, deviation = process.predict({at: max(error, worst) for at, error in errors.items()}, ERROR_WEIGHT)
        expected += self._trend[process.pool]
        believed = [expected[process.at[candidate]] for candidate in process.learned]
        return expected, deviation, -math.log(fastest) if fastest < math.inf else max(believed, default=expected.max())

    def _updated_process(self) -> Process:
        """Return the process after it has learned of all candidates that were asked for."""
        process, new = self._process, list(islice(self.asked, self._seen, None))
        if process is None or len(process.learned) + len(new) > self._most or any(at not in process for at in new):
            process, new = self._new_process()
        for candidate in new:
            process.learn(candidate)
        self._process, self._seen = process, len(self.asked)
        return process

    def _new_process(self) -> tuple[Process, list[int]]:
        """Return a new process, and the candidates that it must learn of. Set `_most`, their largest number."""
        known, pool = list(self.asked), list(range(len(self.indices)))
        if len(known) > MOST_ROWS:
            fastest = sorted(self.latencies, key=lambda candidate: (self.latencies[candidate], candidate))
            known = list(dict.fromkeys([*fastest[: MOST_ROWS // 2], *known[-MOST_ROWS // 2 :]]))
        if len(pool) > MOST_POOL:
            best = min(self.latencies, key=lambda candidate: (self.latencies[candidate], candidate), default=0)
            near = ((self._places != self._places[best]).sum(axis=1) <= 1).nonzero()[0].tolist()
            drawn = random.Random(f"{self.seed} {len(self.asked)}").sample(pool, MOST_POOL // 2)
            pool = list(dict.fromkeys([*known, *near, *self._known, *drawn]))
        whole = len(pool) == len(self.indices) and len(self.asked) <= MOST_ROWS
        self._most = MOST_ROWS if whole else len(known) + RENEW_AFTER
        return Process(self._kernels, self._places, pool), known


def improvement(expected: NDArray[np.float64], deviation: NDArray[np.float64], best: float) -> NDArray[np.float64]:
    """Return the expected improvement of each candidate over `best`."""
    above = expected - best
    ratio = above / deviation
    density = np.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi)
    below = (1 + np.tanh(math.sqrt(2 / math.pi) * (ratio + 0.044715 * ratio**3))) / 2  # the normal distribution
    result: NDArray[np.float64] = above * below + deviation * density
    return result


def _combined(weights: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum of rows. BLAS would use all cores, and its results depend on the number of cores."""
    result: NDArray[np.float64] = np.einsum("i,ij->j", weights, rows)
    return result


def _kernel(length: int, *, ordered: bool) -> NDArray[np.float64]:
    """Return the similarity of two candidates on an axis, for each pair of the axis's values."""
    steps = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) / (length - 1)
    distances = steps if ordered else steps > 0
    result: NDArray[np.float64] = np.exp(-(CHANGE_DECAY * (steps > 0) + DISTANCE_DECAY * distances))
    return result
