"""The survey: elaborates the space's candidates on all compile workers before anything is lowered."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from atune.engine.interfaces import CompileWorker, GroupFailed
from atune.model.artifact import Elaborated, Failure, StaticFacts
from atune.model.candidate import Candidate

MOST = 4096
"""How many candidates are surveyed at most. Of more, the seed draws this many."""
CHUNK = 16
"""How many candidates a worker gets at once. It answers with those done in its time slice."""
SHARE_OF_TIME = 0.1
"""After this share of a time budget, the survey starts no more candidates."""


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
        starts = range(0, len(candidates), CHUNK)
        self._chunks = deque[Sequence[Candidate]](candidates[start : start + CHUNK] for start in starts)
        self._going_on = going_on
        self.facts = dict[int, StaticFacts]()
        self.failures = dict[int, Failure]()
        """Failures of candidates that cannot be elaborated, through their own fault."""

    async def run(self, workers: Sequence[CompileWorker]) -> None:
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(self._serve, worker)

    async def _serve(self, worker: CompileWorker) -> None:
        while self._chunks and self._going_on():
            chunk = self._chunks.popleft()
            try:
                answers = await worker.elaborate(chunk)
            except GroupFailed:
                self._chunks.extend([candidate] for candidate in chunk)
                continue
            for answer in answers:
                self._take(answer)
            if len(answers) < len(chunk):
                self._chunks.appendleft(chunk[len(answers) :])

    def _take(self, answer: Elaborated | Failure) -> None:
        if isinstance(answer, Elaborated):
            self.facts[answer.index] = answer.facts
        elif not answer.doubt:
            self.failures[answer.index] = answer
