"""Evolution: children of the best so far, by crossover and mutation (a steady-state genetic algorithm)."""

from __future__ import annotations

import random

from atune.search.learner import BATCH, Learner

FIRST = 12
"""How many candidates are drawn before the first children."""
PARENTS = 12
"""How many of the best so far can be parents."""
CROSSED = 0.5
"""Share of the children that have two parents."""
TRIES = 30
"""How many children are tried for one place of a batch, until one is a candidate that was not proposed."""


class Evolution(Learner):
    name = "evolution"

    def propose(self, rng: random.Random) -> list[int]:
        if len(self.latencies) < 2 or len(self.asked) < FIRST:
            return self.beginning(rng, BATCH if self.asked else FIRST)
        parents = sorted(self.latencies, key=lambda c: (self.latencies[c], c))[:PARENTS]
        batch = dict.fromkeys(self.drawn(rng, 1))
        for _ in range(BATCH - 1):
            child = self._child(parents, batch, rng)
            if child is not None:
                batch[child] = None
        return list(batch)

    def _child(self, parents: list[int], batch: dict[int, None], rng: random.Random) -> int | None:
        places, axes = self.encoding.places, self.encoding.axes
        for _ in range(TRIES):
            one = min(rng.randrange(len(parents)), rng.randrange(len(parents)))
            genes = list(places[parents[one]])
            if rng.random() < CROSSED:
                other = places[parents[rng.randrange(len(parents))]]
                genes = [rng.choice(pair) for pair in zip(genes, other, strict=True)]
            number = rng.randrange(len(axes))
            genes[number] = rng.randrange(len(axes[number].values))
            child = self.encoding.find(genes)
            if child is not None and child not in self.asked and child not in batch:
                return child
        return None
