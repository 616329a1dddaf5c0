"""What there is to know of a space before anything is lowered: its candidates are elaborated on all compile workers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from atune.engine.interfaces import CompileWorker, GroupFailed
from atune.model.artifact import Elaborated, Failure, StaticFacts
from atune.model.candidate import Candidate

MOST = 4096
"""Candidates that are surveyed at most: of more, so many that the seed draws."""
CHUNK = 16
"""Candidates that a worker is given at once; it answers with those that come in its slice of time."""
SHARE_OF_TIME = 0.1
"""Of a budget in seconds, after which no more candidates are begun with."""


def drawn(candidates: Sequence[Candidate], seed: int) -> list[Candidate]:
    """Return what to survey, in an order that spreads any beginning of it over the space."""
    order = list(candidates)
    random.Random(seed).shuffle(order)
    return order[:MOST]


class Survey:
    """Elaborates `candidates` in chunks, on all workers at once, while `going_on`.

    Where a chunk comes to nothing, each of its candidates is elaborated alone, so that the culprit harms itself only.
    """

    def __init__(self, candidates: Sequence[Candidate], going_on: Callable[[], bool]) -> None:
        starts = range(0, len(candidates), CHUNK)
        self._chunks = deque[Sequence[Candidate]](candidates[start : start + CHUNK] for start in starts)
        self._going_on = going_on
        self.facts = dict[int, StaticFacts]()
        self.failures = dict[int, Failure]()
        """Of candidates that cannot be elaborated, by their own fault."""

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
