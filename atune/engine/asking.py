"""Tells a run's strategy of outcomes and asks it for candidates, in one task."""

from __future__ import annotations

from collections import deque

import anyio.to_thread

from atune.engine.plan import Plan
from atune.engine.run_state import Outcome, Run
from atune.engine.scheduler import CompileState
from atune.search.choosing import kind_of
from atune.search.interface import AHEAD, Guarded
from atune.search.recording import reason_of


class Asking:
    """Tells the strategy of outcomes, and asks it for candidates. Strategies not known to be quick run in a thread."""

    strategy: Guarded | None = None
    """None until it is made, which may wait until the space is surveyed."""

    def __init__(self, run: Run, plan: Plan, scheduled: CompileState) -> None:
        self._run, self._scheduled = run, scheduled
        kind = kind_of(plan.name)
        self.learns, self._quick = kind.learns, kind.quick
        self._most = AHEAD * scheduled.workers
        self._outstanding = {candidate.index for candidate in plan.redo}
        self._news = deque[Outcome]()
        self.expected_ms: float | None = None
        """The best latency, ms, that the strategy expected when it was last asked."""

    def take_note(self, outcome: Outcome) -> None:
        """Queue an outcome, which the strategy is told of before it is asked again."""
        self._news.append(outcome)
        self._outstanding.discard(outcome.index)
        self._run.wake()

    def proposed(self, index: int) -> None:
        self._outstanding.add(index)

    async def turn(self) -> None:
        """Wait until the strategy may be asked, or the run is stopping. Workers compile meanwhile."""
        assert self.strategy is not None
        self.tell()
        while self.learns and not self._run.stopping and len(self._outstanding) >= self.strategy.limit(self._most):
            if not self._scheduled.held:
                self._scheduled.held = True
                self._run.wake()
            await self._run.changed()
            self.tell()
        self._scheduled.held = False

    async def ask(self) -> int | None:
        """Return the next index, or None. Raises `StrategyError`."""
        assert self.strategy is not None
        if self._quick:
            return self._answer()
        return await anyio.to_thread.run_sync(self._answer, abandon_on_cancel=True)

    def _answer(self) -> int | None:
        assert self.strategy is not None
        index = self.strategy.ask()
        self.expected_ms = self.strategy.expected_best()
        return index

    def tell(self) -> None:
        """Tell the strategy of the queued outcomes. Raises `StrategyError`."""
        while self._news and self.strategy is not None:
            outcome = self._news.popleft()
            reason = "" if outcome.latency_ms is not None else reason_of(self._run.recorder.state, outcome.index)
            self.strategy.tell(outcome.index, outcome.latency_ms, reason)
