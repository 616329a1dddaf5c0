"""What ends a run early: its time budget, its devices' time budget, or `until` (a further gain is unlikely)."""

from __future__ import annotations

from collections import deque

import anyio
import anyio.to_thread

from atune.engine.plan import Plan, proposed
from atune.engine.run_state import Outcome, Run, Tell
from atune.errors import UsageError
from atune.journal.state import State
from atune.model.settings import Budget
from atune.search.recording import reason_of
from atune.search.until import Until


def until_of(budget: Budget, plan: Plan, state: State) -> Until | None:
    """Return the fold that tells when a further gain is unlikely, with earlier parts' outcomes; None without `until`.

    Raises `UsageError` if the space is not listed, or scikit-learn is missing.
    """
    if budget.until is None:
        return None
    if not plan.listed:
        raise UsageError(
            "until needs a space that is listed, to know what is left: give a budget, fewer axes, or fewer values"
        )
    until = Until({index: candidate.config for index, candidate in plan.candidates.items()}, budget.until)
    outcomes = sorted(
        (outcome.seq, entry.index) for entry in proposed(state) if (outcome := state.outcome(entry.index)) is not None
    )
    _leave_out_surveyed(until, state)
    until.catch_up((index, _latency(state, index)) for _, index in outcomes)
    return until


def _latency(state: State, index: int) -> float | None:
    """Return the latency that strategies are told for a candidate."""
    outcome = state.outcome(index)
    return None if reason_of(state, index) else getattr(outcome, "timing").latency_ms  # noqa: B009


def _leave_out_surveyed(until: Until, state: State) -> None:
    """Add the candidates that failed in the survey, which ends before any candidate has an outcome."""
    for entry in state.entries.values():
        if entry.surveyed:
            until.tell(entry.index, None)


class Ending:
    """Stops `run` once `budget` is used up. `until` is told of outcomes in their order."""

    def __init__(self, run: Run, budget: Budget, until: Until | None = None) -> None:
        self._run, self._budget, self._until = run, budget, until
        self._news = deque[Outcome]()
        self._knows_surveyed = False

    def telling(self, tell: Tell) -> Tell:
        """Return a callback that passes each outcome to `until` and then to `tell`."""

        def both(outcome: Outcome) -> None:
            if self._until is not None:
                self._news.append(outcome)
            tell(outcome)

        return both

    async def watch(self) -> None:
        """Stop the run when its end is due. Returns once all is measured."""
        async with anyio.create_task_group() as tasks:
            if self._budget.seconds is not None:
                tasks.start_soon(self._keep_time, self._budget.seconds)
            if self._budget.device_seconds is not None:
                tasks.start_soon(self._keep_device_time, self._budget.device_seconds)
            if self._until is not None:
                tasks.start_soon(self._look_ahead, self._until)

    async def _keep_time(self, seconds: float) -> None:
        with anyio.move_on_after(max(0.0, seconds - self._run.recorder.elapsed_s)) as left:
            await self._run.measured.wait()
        if left.cancelled_caught:
            self._run.stop("budget")

    async def _keep_device_time(self, seconds: float) -> None:
        while not self._run.measured.is_set():
            if self._run.recorder.state.device_s >= seconds:
                return self._run.stop("budget")
            await self._run.changed()

    async def _look_ahead(self, until: Until) -> None:
        while not self._run.measured.is_set() and not self._run.stopping:
            if self._news and not self._knows_surveyed:
                self._knows_surveyed = True
                _leave_out_surveyed(until, self._run.recorder.state)
            while self._news:
                outcome = self._news.popleft()
                until.tell(outcome.index, outcome.latency_ms)
                if until.due and await anyio.to_thread.run_sync(until.reached, abandon_on_cancel=True):
                    return self._run.stop("until")
            await self._run.changed()
