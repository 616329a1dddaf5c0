"""Local search: walks from the best of a few drawn candidates to better neighbours, and restarts at a local optimum."""

from __future__ import annotations

import random

from atune.search.interface import Searched
from atune.search.learner import Learner

STARTS = 8
"""Candidates drawn at the beginning; its neighbourhood is that of the best."""
RESTARTS = 4
"""Candidates drawn each time after that."""


class Local(Learner):
    """Walks to the first better neighbour. A candidate's neighbours differ in one axis: see `Encoding.neighbours`."""

    name = "local"

    def __init__(self, searched: Searched) -> None:
        super().__init__(searched)
        self._walk = set[int]()
        """Candidates proposed since the last restart."""
        self._centre: int | None = None
        """The best of them."""

    def propose(self, rng: random.Random) -> list[int]:
        if self._centre is not None and (around := self.new_neighbours(self._centre)):
            rng.shuffle(around)
            self._walk.update(around)
            return around
        if self._centre is not None or not self.asked:
            self._centre, self._walk = None, set()
        drawn = self.drawn(rng, RESTARTS) if self.asked else self.beginning(rng, STARTS)
        self._walk.update(drawn)
        return drawn

    def learn(self, candidate: int) -> None:
        if candidate not in self._walk or candidate not in self.latencies:
            return
        now = self.latencies.get(self._centre, float("inf")) if self._centre is not None else float("inf")
        if self.latencies[candidate] < now:
            moved, self._centre = self._centre is not None, candidate
            if moved:
                self.forget_batch()
