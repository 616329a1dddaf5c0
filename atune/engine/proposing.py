"""The proposing side of a run: surveys the space, makes the strategy, and asks it for candidates."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream
from msgspec.structs import replace

from atune.engine.interfaces import CompileWorker
from atune.engine.plan import Plan
from atune.engine.prior import columns
from atune.engine.run_state import EVENTS_AT_ONCE
from atune.engine.scheduler import CompileState
from atune.engine.screen import Screen
from atune.engine.start import Start
from atune.engine.strategy import EXHAUSTIVE, Guarded, latency_or_reason, learns
from atune.journal.events import BuildFailed, CandidateProposed, CandidatePruned, SpaceSurveyed
from atune.journal.state import proposed
from atune.model.artifact import Elaborated, Failure, StaticFacts
from atune.model.candidate import BASELINE, Candidate
from atune.model.jobs import ElaborateJob, GroupFailed

T = TypeVar("T")
SURVEYED = 4096
"""Largest number of candidates to survey. From a larger space, the seed draws a sample of this size."""
CHUNK, CHUNKS_EACH = 16, 2
"""`CHUNK`: largest number of candidates in a chunk. `CHUNKS_EACH`: number of chunks that each worker should still get,
so that all workers end together. A worker answers with the candidates that it finished in its time slice."""
SHARE_OF_TIME = 0.1
"""Share of a time budget after which the survey starts no further candidates."""
ORDERING_S = 2.0
"""Seconds after which the survey starts no further candidates, if all candidates will be tried in any case."""


class Survey:
    """Elaborates `candidates` in chunks, on all workers, while `going_on` returns true.

    If a chunk fails, each of its candidates is elaborated alone, so that only the culprit fails.
    """

    def __init__(self, candidates: Sequence[Candidate], going_on: Callable[[], bool]) -> None:
        self._left, self._suspects = deque(candidates), deque[Candidate]()
        self._going_on = going_on
        self.facts = dict[int, StaticFacts]()
        self.failures = dict[int, Failure]()
        """Failures of candidates that cannot be elaborated because of their own faults."""

    async def run(self, workers: Sequence[CompileWorker], first_is_free: anyio.Event | None = None) -> None:
        """Survey on all `workers`. The first worker begins when `first_is_free` is set."""
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(self._serve, worker, len(workers), first_is_free if worker is workers[0] else None)

    async def _serve(self, worker: CompileWorker, workers: int, free: anyio.Event | None) -> None:
        if free is not None:
            await free.wait()
        while self._going_on() and (chunk := self._chunk(workers)):
            answers = await worker.run(ElaborateJob(tuple(chunk)))
            if isinstance(answers, GroupFailed):
                self._suspects.extend(chunk)
                continue
            for answer in answers:
                if isinstance(answer, Elaborated):
                    self.facts[answer.index] = answer.facts
                elif not answer.doubt:
                    self.failures[answer.index] = answer
            self._left.extendleft(reversed(chunk[len(answers) :]))

    def _chunk(self, workers: int) -> list[Candidate]:
        """Take the next chunk, given the number of `workers`. Candidates of failed chunks come last, each one alone."""
        if not self._left and self._suspects:
            return [self._suspects.popleft()]
        return [self._left.popleft() for _ in range(min(CHUNK, math.ceil(len(self._left) / (CHUNKS_EACH * workers))))]


class ProposeStage:
    """Proposes the candidates of a plan: tells the strategy the outcomes, and asks it for candidates.

    A strategy that learns runs in a thread, one call at a time.
    """

    def __init__(self, start: Start, plan: Plan, scheduled: CompileState, screen: Screen) -> None:
        self._start, self._run, self._plan, self._scheduled, self._screen = start, start.run, plan, scheduled, screen
        by_outcomes = start.settings.budget.auto and start.settings.pipeline
        self._learns = by_outcomes or not isinstance(plan.given, str) or learns(plan.given)
        self._outstanding = {candidate.index for candidate in plan.redo}
        self._alike: dict[int, list[int]] = {}
        """If all candidates will be tried: for each candidate, the kernels that may differ only in their block order. A
        worker that lowers them one after another lowers all but the first quickly, so they are proposed together."""

    async def serve(self, workers: Sequence[CompileWorker], propose: MemoryObjectSendStream[Candidate]) -> None:
        """Propose until the strategy, the budget or the run ends. Raises `UsageError` and `SpaceError`."""
        run, plan = self._run, self._plan
        with propose:
            for candidate in plan.redo:
                await propose.send(candidate)
                run.wake()
            for index in plan.begun:
                await self._propose_further_layouts(index, propose)
            if (strategy := self._start.strategy) is None:
                await self._survey(workers)
                begin = partial(plan.strategy, run.recorder.state)
                strategy = self._start.strategy = await anyio.to_thread.run_sync(begin, abandon_on_cancel=True)
            if plan.baseline is not None and plan.baseline_left and not run.stopping:
                await self._propose(plan.baseline, propose)
            await self._propose_asked(strategy, propose)
            if self._start.settings.pipeline and self._screen.prunes_losers:
                await self._retry_likely_losers(propose)
            self._scheduled.proposing = False
        run.wake()

    async def _propose_asked(self, strategy: Guarded, propose: MemoryObjectSendStream[Candidate]) -> None:
        run, count = self._run, 0
        while count < self._plan.proposable and not run.stopping:
            await self._wait_for_turn(strategy)
            index = None if run.stopping else await self._call(strategy.ask)
            while index is not None and run.recorder.state.entry(index).key:
                index = await self._call(strategy.ask)  # this index was proposed before, or failed in the survey
            if index is None:
                break
            await self._propose(self._plan.candidates[index], propose)
            await self._propose_further_layouts(index, propose)
            count += 1
            for other in self._alike.get(index, ()):
                if not run.stopping and not run.recorder.state.entry(other).key:
                    await self._propose(self._plan.candidates[other], propose)
                    count += 1

    async def _call(self, function: Callable[[], T]) -> T:
        """Call a function of the strategy, in a thread if it may take long. Raises `StrategyError`."""
        if self._learns:
            return await anyio.to_thread.run_sync(function, abandon_on_cancel=True)
        return function()

    async def _wait_for_turn(self, strategy: Guarded) -> None:
        """Wait until the strategy may be asked, or the run is stopping. Workers go on compiling."""
        await self.tell()
        workers = self._scheduled.workers
        while self._learns and not self._run.stopping and strategy.full(len(self._outstanding), workers):
            if not self._scheduled.held:
                self._scheduled.held = True
                self._run.wake()
            await self._run.changed()
            await self.tell()
        self._scheduled.held = False

    async def tell(self) -> None:
        """Tell the strategy all queued outcomes, including outcomes that are queued meanwhile. Raises `StrategyError`.

        The strategy does not know the baseline. A candidate with the baseline's code gets the baseline's outcome.
        """
        state, strategy, untold = self._run.recorder.state, self._start.strategy, self._run.outcomes.untold
        while untold and strategy is not None:
            outcomes = list[tuple[int, float | None, str]]()
            for _ in range(min(EVENTS_AT_ONCE, len(untold))):
                outcome = untold.popleft()
                self._outstanding.discard(outcome.index)
                index = state.first(BASELINE).index if outcome.index == BASELINE else outcome.index
                latency_ms, reason = outcome.latency_ms, ""
                if latency_ms is None:
                    latency_ms, reason = latency_or_reason(state, index)
                if index != BASELINE:
                    outcomes.append((index, latency_ms, reason))
            await self._call(partial(strategy.tell_all, outcomes))

    async def _retry_likely_losers(self, propose: MemoryObjectSendStream[Candidate]) -> None:
        """If no candidate works, propose one candidate again for each code that was pruned as a likely loser."""
        run, state = self._run, self._run.recorder.state
        self._scheduled.held = True
        run.wake()
        while not run.stopping and any(e.key and state.outcome(e.index) is None for e in state.entries.values()):
            await run.changed()
        if not run.stopping and state.best is None:
            self._screen.keep_losers()
            for index, outcome in [(index, state.outcome(index)) for index in sorted(state.entries)]:
                own = state.first(index).index == index and index in self._plan.candidates
                if own and isinstance(outcome, CandidatePruned) and outcome.likely:
                    await propose.send(self._plan.candidates[index])
                    run.wake()
        self._scheduled.held = False

    async def _propose(
        self, new: Candidate, propose: MemoryObjectSendStream[Candidate], *, further_layout: bool = False
    ) -> None:
        self._outstanding.add(new.index)
        self._run.recorder.emit(
            CandidateProposed, index=new.index, key=new.key, config=new.config, further_layout=further_layout
        )
        await propose.send(new)
        self._run.wake()

    async def _propose_further_layouts(self, index: int, propose: MemoryObjectSendStream[Candidate]) -> None:
        """Propose the other layouts of a candidate's configuration, so that the screen can choose among them."""
        state, layouts = self._run.recorder.state, self._start.layouts
        for other in [] if layouts is None or index == BASELINE else layouts.group(index):
            if not state.entry(other).key:
                await self._propose(self._plan.candidates[other], propose, further_layout=True)

    # ---- the survey

    async def _survey(self, workers: Sequence[CompileWorker]) -> None:
        """Survey the candidates before any is lowered, and record the result.

        A candidate that cannot be elaborated fails, and is never proposed.
        """
        run, recorder, settings = self._run, self._run.recorder, self._start.settings
        candidates, began = self._plan.candidates, recorder.elapsed_s
        tries_all = self._plan.proposable + len(proposed(recorder.state)) >= self._plan.total
        every = self._plan.given == EXHAUSTIVE and tries_all
        limits = [ORDERING_S] if every else []
        limits += [] if settings.budget.seconds is None else [SHARE_OF_TIME * settings.budget.seconds]
        until = began + min(limits, default=float("inf"))
        order = list(candidates.values())
        random.Random(settings.seed).shuffle(order)  # so that a survey that ends early covers the whole space
        survey = Survey(order[:SURVEYED], going_on=lambda: not run.stopping and recorder.elapsed_s < until)
        async with anyio.create_task_group() as tasks:
            if self._learns:  # importing numpy takes as long as the survey
                tasks.start_soon(partial(anyio.to_thread.run_sync, import_module, "numpy", abandon_on_cancel=True))
            await survey.run(workers, run.found_roles)
        families = dict[StaticFacts, list[int]]()
        for index, known in survey.facts.items() if every else ():
            work = known.work and replace(known.work, block_order="")
            self._alike[index] = families.setdefault(replace(known, work=work), [])
            self._alike[index].append(index)
        figures = run.figures
        assert figures is not None, "without figures there is no survey"
        fields = await anyio.to_thread.run_sync(columns, survey.facts, figures, abandon_on_cancel=True)
        for index, failure in survey.failures.items():
            if recorder.state.entry(index).key:
                continue  # an earlier run tried it
            failed = candidates[index]
            recorder.emit(CandidateProposed, index=index, key=failed.key, config=failed.config, surveyed=True)
            recorder.emit(BuildFailed, index=index, kind=failure.kind, message=failure.message, detail=failure.detail)
        recorder.emit(SpaceSurveyed, seconds=round(recorder.elapsed_s - began, 4), **fields)
        run.outcomes.sync_soon()
