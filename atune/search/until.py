"""Ends a run once a further gain above some share is unlikely: it has less than one chance in ten.

A random forest (Breiman, Machine Learning 2001) predicts the latencies of what is left. Its error on promising
candidates is estimated out of bag. Prediction and error give each candidate's chance to beat the best by more than the
gain. Their sum bounds the chance that any is (Boole's inequality). The constants were chosen with the recordings of
`bench/until.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from atune.errors import UsageError
from atune.model.candidate import Config
from atune.search.encoding import Encoding
from atune.search.forest import available

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHANCE = 0.1
"""Chance of a further gain below which nothing more is tried."""
IN_A_ROW = 2
"""How many looks in a row must find so small a chance, because one alone may be luck."""
FIRST, STEP, LATER, LATER_STEP = 16, 8, 96, 32
"""The first look is after `FIRST` measurements, then one each `STEP`, and from `LATER` on each `LATER_STEP`."""
LEAST_SHARE = 0.03
"""Of all candidates, that have a latency at the first look. Those that a prior puts first are much alike, and tell
little of the others: without this, 5 of 25 stops held in a space of 2,508."""
TREES, FEATURES = 40, 0.7
PROMISING = 3
"""One in this many measured candidates is promising: those that the forest ranks best."""
LEAST = 6
"""The least number of measurements for a prediction."""


def needs() -> None:
    """Raise `UsageError`, with what to install, where scikit-learn is missing."""
    if not available():
        raise UsageError(
            "until needs scikit-learn, which is not installed: pip install 'atune[search]', or give a budget"
        )


class Until:
    """Told of outcomes in order, says when a gain above `gain` (0.02: 2 %) is unlikely. A pure fold.

    `configs`: all candidates. Raises `UsageError` where scikit-learn is missing.
    """

    def __init__(self, configs: Mapping[int, Config], gain: float) -> None:
        needs()
        self.gain = gain
        self._indices = list(configs)
        self._positions = {index: position for position, index in enumerate(self._indices)}
        self._encoding = Encoding(list(configs.values()))
        self._latencies = dict[int, float]()
        self._known = set[int]()
        self._looked, self._small = 0, 0

    def tell(self, index: int, latency_ms: float | None) -> None:
        """Take a candidate's outcome in; None where it has no latency of its own."""
        position = self._positions.get(index)
        if position is not None:
            self._known.add(position)
            if latency_ms is not None:
                self._latencies[position] = latency_ms

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        count = len(self._latencies)
        return count > self._looked and count >= LEAST_SHARE * len(self._indices) and _is_look(count)

    def reached(self) -> bool:
        """Look, and tell whether to end. May take a tenth of a second."""
        self._looked = len(self._latencies)
        self._small = self._small + 1 if self.chance() < CHANCE else 0
        return self._small >= IN_A_ROW

    def catch_up(self, outcomes: Iterable[tuple[int, float | None]]) -> bool:
        """Take in what an earlier part of the run was told, in order, and return whether that is the end."""
        ended = False
        for index, latency_ms in outcomes:
            self.tell(index, latency_ms)
            ended = self.reached() if self.due else ended
        return ended

    def chance(self) -> float:
        """Return a bound of the chance that a candidate that is left is better by more than the gain."""
        import numpy as np

        left = [position for position in range(len(self._indices)) if position not in self._known]
        if not left:
            return 0.0
        if len(self._latencies) < LEAST:
            return math.inf
        known, features = list(self._latencies), self._encoding.features
        logs = np.log(np.array([self._latencies[position] for position in known]))
        forest = _forest()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some candidate may be in the sample of every tree
            forest.fit(features[known], logs)
        spread = _spread(forest.oob_prediction_, logs)
        goal = logs.min() + math.log1p(-self.gain)
        return _tails((goal - forest.predict(features[left])) / spread)


def _is_look(count: int) -> bool:
    if count < LATER:
        return count >= FIRST and count % STEP == 0
    return count % LATER_STEP == 0


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=TREES, max_features=FEATURES, oob_score=True, random_state=0, n_jobs=1)


def _spread(predicted: NDArray[np.float64], logs: NDArray[np.float64]) -> float:
    """Return the standard deviation of the errors about promising candidates."""
    import numpy as np

    promising = np.argsort(predicted)[: max(LEAST - 1, len(logs) // PROMISING)]
    errors = (logs - predicted)[promising]
    return math.sqrt(float(np.nanmean(errors**2)) + 1e-9)


def _tails(distances: NDArray[np.float64]) -> float:
    """Return the sum of a normal distribution's shares below `distances`, in standard deviations."""
    return sum(0.5 * math.erfc(-distance / math.sqrt(2)) for distance in distances)
