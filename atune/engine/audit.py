"""Likely losers under a budget: they are skipped. An audit tries some at the end, to see how often that was wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping

from atune.engine.run_state import Run
from atune.engine.scheduler import CompileState
from atune.journal.state import State
from atune.journal.untried import passed_over
from atune.model.budget import AUDITED_LEAST
from atune.model.candidate import Candidate


def sample_of(state: State, share: float | None, seed: int) -> list[int]:
    """Return which skipped candidates to try, in the space's order: one for each distinct code.

    Returns all of them if no other candidate worked, else the audit's `share`, but at least `AUDITED_LEAST`.
    """
    codes = {state.first(index).index: index for index in sorted(state.skipped, reverse=True)}
    skipped = sorted(codes.values())
    if not any(state.first(measured.index).index not in codes for measured in state.ranked()):
        return skipped
    if share is None:
        return []
    count = min(len(skipped), max(AUDITED_LEAST, math.ceil(share * len(skipped))))
    return sorted(random.Random(f"{seed} audit").sample(skipped, count))


class Audit:
    """Decides which likely losers a run skips, and which of these it tries at its end. `share`, `seed`: see
    `sample_of`."""

    def __init__(self, run: Run, share: float | None, seed: int) -> None:
        self._run, self._share, self._seed = run, share, seed
        self._tried = set[int]()

    def skips(self, index: int) -> bool:
        """Tell whether a likely loser is skipped."""
        return index not in self._tried

    async def serve(
        self, scheduled: CompileState, candidates: Mapping[int, Candidate], send: Callable[[Candidate], Awaitable[None]]
    ) -> None:
        """Wait until all other candidates have an outcome, then `send` the sampled ones that were not tried."""
        run, state = self._run, self._run.recorder.state
        scheduled.auditing = True
        run.wake()
        while not run.stopping and any(e.key and state.outcome(e.index) is None for e in state.entries.values()):
            await run.changed()
        for index in [] if run.stopping else sample_of(state, self._share, self._seed):
            if index in candidates and passed_over(state.outcome(index)):
                self._tried.add(index)
                await send(candidates[index])
                run.wake()
        scheduled.auditing = False
        run.wake()
