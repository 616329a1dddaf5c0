"""A forest of extremely randomised trees that predicts latencies, as sequential model-based optimisation.

Sources: Hutter, Hoos and Leyton-Brown, Sequential Model-Based Optimization for General Algorithm Configuration (LION
2011), for a forest that predicts logarithms of costs, whose trees' spread tells how sure it is. Geurts, Ernst and
Wehenkel, Extremely randomized trees (Machine Learning 2006), for the trees. Failures have no latency: a second forest
classifies candidates by whether they fail.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from atune.engine.search.interface import DUPLICATE, Encoding, Searched, by_prior, more_columns
from atune.model.requirements import lacks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH = 8
"""How many candidates are proposed at once, without learning in between."""
KNOWN_PER_OUTSTANDING = 4
"""For this many known candidates, one more may be outstanding."""
FIRST = 8
"""How many candidates are drawn before the forest decides; fewer under a small budget."""
RANKED = 16
"""How many candidates the prior chooses at first. As many may be outstanding, because its order needs no outcomes."""
TREES = 50
COLUMNS = 0.6
"""Share of the columns that each split of a tree chooses from, so that the trees differ."""
OPTIMISM = 0.6
"""A candidate scores by its lower bound: the trees' mean less this many of their standard deviations."""
EARLY, EARLY_BATCH = 64, 2
"""Until `EARLY` candidates were proposed, batches have `EARLY_BATCH`, because early learning counts most. One candidate
of each `BATCH` is drawn at random."""
LEAST = 4
"""At least so many are drawn before the forest decides, and may be outstanding, however small the budget is."""
OUTSTANDING = 0.3
"""Share of a small budget that may be outstanding. Less leaves compile workers small groups, which are slow."""
MOST_SCORED = 8192
"""Most candidates that are scored. Of more, these are the prior's best, neighbours of the best, and a sample."""
LIKELY = 0.5
"""Candidates that fail with a higher probability than this come after all others."""
POLISHED = 0.15
"""Share of a budget that is reserved for neighbours of the best."""


class Forest:
    """Proposes in batches. A batch depends only on the seed, and on the proposals and outcomes before it.

    Candidates are numbered by their position among `Searched.configs` here; only `ask` and `tell` know indices.
    """

    name = "forest"

    def __init__(self, searched: Searched) -> None:
        self.indices = list(searched.configs)
        self._positions = {index: position for position, index in enumerate(self.indices)}
        self.encoding = Encoding(list(searched.configs.values()))
        self.seed, self.budget = searched.seed, searched.budget
        ranked = by_prior(self.indices, searched.prior) if searched.prior is not None else []
        self.ranked = [self._positions[index] for index in ranked]
        """All candidates by the prior, the best first; empty without one."""
        self.advised = {self._positions[index] for index in searched.advised}
        """Candidates that were the fastest in other runs."""
        self.asked = dict[int, None]()
        """Positions that were asked for, in order."""
        self.latencies = dict[int, float]()
        self.failures = dict[int, str]()
        """Why those failed that did."""
        self._settled = set[int]()
        self._batch = deque[int]()
        self._regressor, self._classifier = _forests()
        self._features = self._rows(searched)

    @property
    def most_outstanding(self) -> int:
        """Fewer under a small budget, or most would be proposed before the first outcome.

        With a prior more: its first candidates are worth compiling at once.
        """
        first = BATCH if self.budget is None else max(LEAST, min(BATCH, int(self.budget * OUTSTANDING)))
        first = RANKED if self.ranked else first
        return max(first, len(self._settled) // KNOWN_PER_OUTSTANDING)

    def ask(self) -> int | None:
        while len(self.asked) < len(self.indices):
            if not self._batch:
                rng = random.Random(f"{self.seed} {len(self.asked)}")
                self._batch.extend(dict.fromkeys(self.propose(rng)))
            candidate = self._batch.popleft()
            if candidate not in self.asked:
                self.asked[candidate] = None
                return self.indices[candidate]
        return None

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        candidate = self._positions.get(index)
        if candidate is None:
            return  # it failed in the survey
        self.asked[candidate] = None
        self._settled.add(candidate)
        self.latencies.pop(candidate, None)
        self.failures.pop(candidate, None)
        if latency_ms is not None:
            self.latencies[candidate] = latency_ms
        elif reason != DUPLICATE:
            self.failures[candidate] = reason

    def propose(self, rng: random.Random) -> list[int]:
        most, share = (RANKED, 2) if self.ranked else (FIRST, 4)
        first = most if self.budget is None else max(LEAST, min(most, self.budget // share))
        if len(self._own(self.asked)) < first or len(self.latencies) < 2:
            return self.beginning(rng, first)
        if around := self._polish():
            return around
        size = EARLY_BATCH if len(self.asked) < EARLY else BATCH
        drawn = self.drawn(rng, 1 if len(self.asked) % BATCH + size >= BATCH else 0)
        return [*self._chosen(rng, size - len(drawn)), *drawn]

    def _polish(self) -> list[int]:
        """Return the new neighbours of the best if the budget is nearly used up."""
        if self.budget is None or self.best is None:
            return []
        rest = self.budget - len(self.asked)
        if rest > max(BATCH // 2, POLISHED * self.budget):
            return []
        around = self.new_neighbours(self.best)
        if not around:
            return []
        scores = self._scores(random.Random(self.seed), around)
        return [around[i] for i in sorted(range(len(around)), key=lambda i: -scores[i])][:BATCH]

    def _chosen(self, rng: random.Random, count: int) -> list[int]:
        left = self.left()
        if len(left) > MOST_SCORED:
            best = [candidate for candidate in self.ranked if candidate not in self.asked][: MOST_SCORED // 2]
            near = [] if self.best is None else self.new_neighbours(self.best)
            left = list(dict.fromkeys([*best, *near, *rng.sample(left, MOST_SCORED // 2)]))
        scores = self._scores(rng, left)
        ties = [rng.random() for _ in left]
        order = sorted(range(len(left)), key=lambda i: (-scores[i], ties[i]))
        return [left[i] for i in order[:count]]

    def _scores(self, rng: random.Random, candidates: list[int]) -> NDArray[np.float64]:
        """Return a score for each of `candidates`, the higher the better: what likely fails is below all else."""
        import numpy as np

        latencies, failures = self._evidence()
        measured, features = list(latencies), self._features
        options = {"n_estimators": TREES, "max_features": COLUMNS, "random_state": rng.randrange(2**31), "n_jobs": 1}
        forest = self._regressor(**options).fit(features[measured], np.log([latencies[c] for c in measured]))
        rows = features[candidates]
        predicted = np.stack([tree.predict(rows, check_input=False) for tree in forest.estimators_])
        scores: NDArray[np.float64] = OPTIMISM * predicted.std(axis=0) - predicted.mean(axis=0)
        if failures:
            failed = [False] * len(measured) + [True] * len(failures)
            classifier = self._classifier(**options).fit(features[measured + failures], failed)
            chances = classifier.predict_proba(rows)[:, -1]
            scores[chances > LIKELY] -= np.ptp(scores) + 1.0
        return scores

    def _evidence(self) -> tuple[dict[int, float], list[int]]:
        """Return the latencies and the failures to learn from.

        Advised candidates are left out: they are alike and at first the best, so that the forest would stay near them.
        """
        own = {c: self.latencies[c] for c in self._own(self.latencies)}
        return (own, self._own(self.failures)) if len(own) >= 2 else (self.latencies, list(self.failures))

    def _own(self, candidates: Iterable[int]) -> list[int]:
        """Return those of `candidates` that were not advised."""
        return [candidate for candidate in candidates if candidate not in self.advised]

    @property
    def best(self) -> int | None:
        """The fastest so far; of equals the first in the space."""
        return min(self.latencies, key=lambda candidate: (self.latencies[candidate], candidate), default=None)

    def left(self) -> list[int]:
        """Return the candidates not proposed yet, in order."""
        return [candidate for candidate in range(len(self.indices)) if candidate not in self.asked]

    def beginning(self, rng: random.Random, count: int) -> list[int]:
        """Return the first candidates. With a prior, all but one of these follow it. Otherwise all are drawn."""
        if not self.ranked:
            return self.first_drawn(rng, count)
        best = [candidate for candidate in self._own(self.ranked) if candidate not in self.asked]
        return [*best[: max(1, count - 1)], *self.drawn(rng, 1)]

    def drawn(self, rng: random.Random, count: int) -> list[int]:
        """Draw up to `count` candidates that were not asked for, without replacement."""
        left = self.left()
        return rng.sample(left, min(count, len(left)))

    def new_neighbours(self, candidate: int) -> list[int]:
        return [other for other in self.encoding.neighbours(candidate) if other not in self.asked]

    def first_drawn(self, rng: random.Random, count: int) -> list[int]:
        """Draw the first candidates without a prior: spread under a small budget, of which they are a large share."""
        if self.budget is None or self.budget >= EARLY:
            return self.drawn(rng, count)
        order = self.encoding.spread_order(self.seed)
        return list(islice((candidate for candidate in order if candidate not in self.asked), count))

    def _rows(self, searched: Searched) -> NDArray[np.float32]:
        """Return the features of all candidates, of shape (candidates, columns)."""
        import numpy as np

        more = more_columns(self.indices, searched.prior, searched.facts)
        return np.concatenate([self.encoding.features, more], axis=1).astype(np.float32)


def available() -> bool:
    """Tell whether scikit-learn is installed; it is not imported."""
    from importlib.util import find_spec

    return find_spec("sklearn") is not None


def needs() -> None:
    """Raise `UsageError`, with what to install, if scikit-learn is missing."""
    if not available():
        raise lacks("strategy 'forest', unlike prior and random,", "scikit-learn")


def preload() -> None:
    """Import scikit-learn if it is installed. Takes a second or more, so call it in a thread."""
    with suppress(Exception):  # `needs` reports it
        _forests()


def _forests() -> tuple[Any, Any]:
    """Return scikit-learn's regressor and classifier."""
    needs()
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    return ExtraTreesRegressor, ExtraTreesClassifier
