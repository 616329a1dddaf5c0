"""A random forest that tells good candidates from bad ones, as likelihood-free Bayesian optimisation.

Source: Song, Yu, Neiswanger and Ermon, A General Recipe for Likelihood-free Bayesian Optimization (ICML 2022). A
classifier separates the best so far from the rest, each weighted by its improvement. Its output is the expected
improvement. It needs no model of the latencies' distribution, and failures count as bad candidates.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from atune.engine.search.encoding import Encoding, elsewhere_column, more_columns
from atune.engine.search.fixed_orders import first_of, spread_order
from atune.engine.search.interface import DUPLICATE, Searched, by_prior
from atune.errors import UsageError

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
GOOD = 5
"""The best of every this many known candidates count as good: the best fifth."""
TREES = 50
EARLY, LEAST = 64, 4
"""Until this many candidates were proposed, batches have `LEAST`, because early learning counts most. One candidate of
each `BATCH` is drawn at random."""
TRUST, TRUST_FROM = 0.5, 8
"""The forest sees other runs' ratios while they order this search's own better half as its latencies do: if Spearman's
rank correlation is above `TRUST`, of `TRUST_FROM` candidates at least."""
MOST_SCORED = 8192
"""Of more candidates that are left, the forest scores the prior's best, neighbours of the best, and a sample."""
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
        self.advised = [self._positions[index] for index in first_of(searched.elsewhere, searched.budget)]
        """The few that were best elsewhere, the best first."""
        self.asked = dict[int, None]()
        """In order."""
        self.latencies = dict[int, float]()
        self.failures = dict[int, str]()
        """Why those failed that did."""
        self._settled = set[int]()
        self._batch = deque[int]()
        self._make = _classifier()
        self._searched = searched
        self._features = self._rows()

    @property
    def most_outstanding(self) -> int:
        """Fewer under a small budget, or most would be proposed before the first outcome.

        With a prior more: its first candidates are worth compiling at once.
        """
        first = BATCH if self.budget is None else max(LEAST, min(BATCH, self.budget // BATCH))
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
        if len(self.asked) < first or len(self.latencies) < 2:
            return self.beginning(rng, first)
        if around := self._polish():
            return around
        size = LEAST if len(self.asked) < EARLY else BATCH
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
        """Return the forest's score for each of `candidates`."""
        known, labels, weights = self._lessons()
        features = self._seen()
        forest = self._make(n_estimators=TREES, random_state=rng.randrange(2**31), n_jobs=1)
        forest.fit(features[known], labels, sample_weight=weights)
        found: NDArray[np.float64] = forest.predict_proba(features[candidates])[:, -1]
        return found

    def _seen(self) -> NDArray[np.float32]:
        """Return the features without the column of other runs' ratios, unless these are trusted."""
        return self._features if not self._searched.elsewhere or self._trusts() else self._features[:, :-1]

    def _trusts(self) -> bool:
        """Tell whether other runs' ratios order the better half of this search's own candidates as they are here."""
        elsewhere = self._searched.elsewhere
        own = [c for c in self._own(self.latencies) if self.indices[c] in elsewhere]
        better = sorted(own, key=lambda c: (self.latencies[c], c))[: max(TRUST_FROM, len(own) // 2)]
        here, there = [self.latencies[c] for c in better], [elsewhere[self.indices[c]] for c in better]
        if len(better) < TRUST_FROM or len(set(here)) == 1 or len(set(there)) == 1:
            return False
        from scipy.stats import spearmanr  # scikit-learn brings scipy

        return float(spearmanr(here, there)[0]) > TRUST

    def _lessons(self) -> tuple[list[int], list[int], list[float]]:
        """Return the known candidates, whether each is good, and its weight. A good one weighs by its improvement."""
        latencies, failures = self._evidence()
        ranked = sorted(latencies, key=lambda c: (latencies[c], c))
        known = [*ranked, *failures]
        good = max(1, min(len(ranked) - 1, math.ceil(len(known) / GOOD)))
        least = math.log(latencies[ranked[good]])
        gains = [max(least - math.log(latencies[c]), 0.0) for c in ranked[:good]]
        mean = sum(gains) / good
        weights = [(gain / mean if mean > 0 else 1.0) + 1e-3 for gain in gains]
        return known, [1] * good + [0] * (len(known) - good), weights + [1.0] * (len(known) - good)

    def _evidence(self) -> tuple[dict[int, float], list[int]]:
        """Return the latencies and the failures to learn from.

        Advised candidates are left out: they are alike and at first the best, so that the forest would stay near them.
        """
        own = {c: self.latencies[c] for c in self._own(self.latencies)}
        return (own, self._own(self.failures)) if len(own) >= 2 else (self.latencies, list(self.failures))

    def _own(self, candidates: Iterable[int]) -> list[int]:
        """Return those of `candidates` that were not advised."""
        advised = frozenset(self.advised)
        return [candidate for candidate in candidates if candidate not in advised]

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
        order = spread_order(self.encoding.places, [len(axis.values) for axis in self.encoding.axes], self.seed)
        return list(islice((candidate for candidate in order if candidate not in self.asked), count))

    def _rows(self) -> NDArray[np.float32]:
        """Return the features of all candidates, of shape (candidates, columns)."""
        import numpy as np

        more = more_columns(self.indices, self._searched.prior, self._searched.facts)
        known = elsewhere_column(self.indices, self._searched.elsewhere)  # the last, as `_seen` knows
        return np.concatenate([self.encoding.features, more, known], axis=1).astype(np.float32)


def available() -> bool:
    """Tell whether scikit-learn is installed; it is not imported."""
    from importlib.util import find_spec

    return find_spec("sklearn") is not None


def needs() -> None:
    """Raise `UsageError`, with what to install, if scikit-learn is missing."""
    if not available():
        raise UsageError(
            "strategy 'forest' needs scikit-learn, which is not installed: pip install 'atune[search]', or take prior "
            "or random"
        )


def preload() -> None:
    """Import scikit-learn if it is installed. Takes a second or more, so call it in a thread."""
    with suppress(Exception):  # `needs` reports it
        _classifier()


def _classifier() -> Any:
    needs()
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier
