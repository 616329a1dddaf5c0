"""Turns the strategy's proposals into candidates of the space."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from atune.model.candidate import Candidate
from atune.model.settings import Budget
from atune.search.guard import Guarded
from atune.workload.workload import WorkloadSpec

LookUp = Callable[[Sequence[int]], Awaitable[Sequence[Candidate | None]]]
"""Returns the candidates at the first one or more of some places of a large space; None where constraints refuse."""

FEW, MANY = 16, 512
"""How many places of a large space are looked up at once: the first number, or the second after all were refused."""
REFUSED_WORDS = 100_000
"""A warning follows after this many refused places in a row, and again after ten times as many."""


class Asks(Protocol):
    """Where a run gets its next candidate from."""

    learns: bool

    async def ask(self) -> int | None: ...


class Listed:
    """The candidates of a space that is listed."""

    exhausted = False

    def __init__(self, candidates: Mapping[int, Candidate], ask: Callable[[], Awaitable[int | None]]) -> None:
        self.candidates, self._ask = candidates, ask

    async def next(self) -> Candidate | None:
        """Return the next candidate; None at the end."""
        while (index := await self._ask()) is not None:
            if index in self.candidates:  # otherwise the space no longer holds it
                return self.candidates[index]
        self.exhausted = True
        return None


class LookedUp:
    """The candidates of a large space: the strategy proposes places, and constraints refuse some of them.

    `known`: candidates by index, to which found ones are added. `stopping`: tells whether the run is stopping. A
    learning strategy is asked for one place at a time and not told of refused ones. So a resumed run asks as the
    uninterrupted one.
    """

    def __init__(
        self,
        known: dict[int, Candidate],
        strategy: Guarded,
        asking: Asks,
        look_up: LookUp,
        stopping: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self.candidates, self._strategy, self._look_up = known, strategy, look_up
        self._asks = asking
        self._stopping, self._warn = stopping, warn
        self.exhausted = False
        """Whether the strategy has no more places."""
        self._asked: deque[int] = deque()
        self._found: deque[Candidate] = deque()
        self._at_once, self._refused, self._words = 1 if asking.learns else FEW, 0, REFUSED_WORDS

    async def next(self) -> Candidate | None:
        """Return the next candidate; None at the end, or when the run is stopping."""
        while not self._found:
            if self._stopping() or not await self._more_asked():
                return None
            await self._look()
        candidate = self._found.popleft()
        self.candidates[candidate.index] = candidate
        return candidate

    async def _more_asked(self) -> bool:
        while len(self._asked) < self._at_once and (index := await self._asks.ask()) is not None:
            self._asked.append(index)
        self.exhausted = not self._asked
        return bool(self._asked)

    async def _look(self) -> None:
        answers = await self._look_up(tuple(self._asked))
        for answer in answers:
            place = self._asked.popleft()
            if answer is not None:
                self._found.append(answer)
            elif not self._asks.learns:
                self._strategy.tell(place, None)
        if not self._asks.learns:
            self._at_once = FEW if self._found else min(MANY, 2 * self._at_once)
        self._refused = 0 if self._found else self._refused + len(answers)
        if self._refused >= self._words:
            self._words *= 10
            self._warn(
                f"the space's constraints refused {self._refused:,} points in a row: axes whose values fit together, "
                "or a function that computes them, find candidates sooner"
            )


async def looked_up(places: Sequence[int], look_up: LookUp) -> dict[int, Candidate]:
    """Return the candidates at `places`, by place, without those that the space refuses."""
    found, left = dict[int, Candidate](), deque(places)
    while left:
        for answer in await look_up([left[i] for i in range(min(MANY, len(left)))]):
            place = left.popleft()
            if answer is not None:
                found[place] = answer
    return found


def endless(spec: WorkloadSpec, budget: Budget) -> list[str]:
    """Return a warning for a large space without a budget, with the time it takes to try all of it."""
    if spec.size is None or budget.limited:
        return []
    days = spec.size / 86_400
    return [
        f"the space has {spec.size:,} points and there is no budget: at one a second, all of them take {days:,.0f} "
        "days. They are tried spread over the space; what is measured when you stop the run counts. A budget ends it "
        "by itself: --budget 1000, or --budget 30m (budget=…)"
    ]
