"""The survey: elaborates the space's candidates on all compile workers before anything is lowered."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from atune.engine.interfaces import CompileWorker
from atune.model.artifact import Elaborated, Failure, StaticFacts
from atune.model.candidate import Candidate
from atune.model.jobs import ElaborateJob, GroupFailed

MOST = 4096
"""How many candidates are surveyed at most. Of more, the seed draws this many."""
CHUNK, SHARES = 16, 2
"""A worker gets at most `CHUNK` candidates at once: those left, divided by `SHARES` times the workers. So all workers
end together. A worker answers with those done in its time slice."""
BEST = 8
"""Of how many of the best estimates the neighbours are surveyed, too, in a large space."""
SHARE_OF_TIME = 0.1
"""After this share of a time budget, the survey starts no more candidates."""
ORDERING_S = 2.0
"""After this many seconds, the survey starts no more, where all candidates are tried and it only orders them."""


def drawn(candidates: Sequence[Candidate], seed: int) -> list[Candidate]:
    """Return the candidates to survey. Any beginning of their order is spread over the space."""
    order = list(candidates)
    random.Random(seed).shuffle(order)
    return order[:MOST]


class Survey:
    """Elaborates `candidates` in chunks, on all workers, while `going_on` returns true.

    If a chunk fails, each of its candidates is elaborated alone, so that only the culprit fails.
    """

    def __init__(self, candidates: Sequence[Candidate], going_on: Callable[[], bool]) -> None:
        self._left, self._suspects = deque[Candidate](), deque[Candidate]()
        self._going_on = going_on
        self.candidates = dict[int, Candidate]()
        self.add(candidates)
        self.facts = dict[int, StaticFacts]()
        self.failures = dict[int, Failure]()
        """Failures of candidates that cannot be elaborated, through their own fault."""

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Have the next `run` elaborate `candidates`."""
        self.candidates |= {candidate.index: candidate for candidate in candidates}
        self._left.extend(candidates)

    async def run(self, workers: Sequence[CompileWorker]) -> None:
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(self._serve, worker, len(workers))

    async def _serve(self, worker: CompileWorker, workers: int) -> None:
        while self._going_on() and (chunk := self._chunk(workers)):
            answers = await worker.run(ElaborateJob(tuple(chunk)))
            if isinstance(answers, GroupFailed):
                self._suspects.extend(chunk)
                continue
            for answer in answers:
                self._take(answer)
            self._left.extendleft(reversed(chunk[len(answers) :]))

    def _chunk(self, workers: int) -> list[Candidate]:
        """Take the next candidates for one of `workers`. Those of a failed chunk come alone, and last."""
        if not self._left and self._suspects:
            return [self._suspects.popleft()]
        return [self._left.popleft() for _ in range(min(CHUNK, math.ceil(len(self._left) / (SHARES * workers))))]

    def _take(self, answer: Elaborated | Failure) -> None:
        if isinstance(answer, Elaborated):
            self.facts[answer.index] = answer.facts
        elif not answer.doubt:
            self.failures[answer.index] = answer
