"""What there is to know of a space before anything is lowered: its candidates are elaborated on all compile workers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from atune.engine.interfaces import CompileWorker, GroupFailed
from atune.engine.proposals import LookUp, looked_up
from atune.model.artifact import Elaborated, Failure, StaticFacts
from atune.model.candidate import Candidate
from atune.model.grid import Grid

Estimate = Callable[[], Awaitable[Mapping[int, float]]]
Run = Callable[[], Awaitable[None]]

MOST = 4096
"""Candidates that are surveyed at most: of more, so many that the seed draws."""
CHUNK = 16
"""Candidates that a worker is given at once; it answers with those that come in its slice of time."""
ROUNDS, BEST = 8, 8
"""How often the neighbours of the best estimates are surveyed in a large space, and of how many."""
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
        self._chunks = deque[Sequence[Candidate]]()
        self._going_on = going_on
        self.add(candidates)
        self.facts = dict[int, StaticFacts]()
        self.failures = dict[int, Failure]()
        """Of candidates that cannot be elaborated, by their own fault."""

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Have the next `run` elaborate `candidates`."""
        starts = range(0, len(candidates), CHUNK)
        self._chunks.extend(candidates[start : start + CHUNK] for start in starts)

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


async def refine(
    survey: Survey, grid: Grid, pool: dict[int, Candidate], estimate: Estimate, look_up: LookUp, run: Run
) -> None:
    """Survey the neighbours of what has the best estimates in a large space, then theirs, and add them to its `pool`.

    `estimate` returns estimates by place; `run` elaborates what was added to `survey`.
    """
    seen, around = set(pool), dict[int, Candidate]()
    for _ in range(ROUNDS):
        estimates = await estimate()
        best = sorted(estimates, key=lambda place: (estimates[place], place))[:BEST]
        new = dict.fromkeys(other for place in best for other in grid.neighbours(place) if other not in seen)
        places = list(new)[: max(0, MOST - len(seen))]
        seen.update(places)
        found = await looked_up(places, look_up)
        if not found:
            break
        around |= found
        survey.add(list(found.values()))
        await run()
    pool.update((place, around[place]) for place in sorted({*survey.facts, *survey.failures} & around.keys()))
