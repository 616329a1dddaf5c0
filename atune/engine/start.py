"""The start of a run, or of a part that resumes it: finds the work, devices and earlier results, and makes the plan."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from atune.engine.interfaces import CompileWorker, Machine
from atune.engine.plan import Plan
from atune.engine.prior import figures_for
from atune.engine.run_state import Run
from atune.engine.screen import LayoutChoice, layout_choice
from atune.engine.settings import RESUME, EngineSettings, KnownResult, Recall, all_accepted, check_same_work
from atune.engine.strategy import Guarded, Strategy
from atune.errors import warn_caller
from atune.journal.events import BenchmarkFailed, JournalRepaired, RunResumed, RunStarted, Warned
from atune.journal.state import State, finished
from atune.model.artifact import Elaborated
from atune.model.candidate import Advice, Candidate
from atune.model.device import DeviceInfo, DeviceLimits, Target
from atune.model.jobs import ElaborateJob
from atune.workload.workload import WorkloadSpec

POLL_S = 0.1
"""Seconds between two checks of whether another run of the same work has ended."""


class Start:
    """The start of a run on `machine`."""

    def __init__(self, machine: Machine, run: Run, settings: EngineSettings) -> None:
        self.machine, self.run, self.recorder, self.settings = machine, run, run.recorder, settings
        self.strategy: Guarded | None = None
        """The strategy; None until the space is surveyed, if it must be surveyed."""
        self.recalled = ""
        """The journal of an earlier run that already has the result; empty if this run has work to do."""
        self.layouts: LayoutChoice | None = None
        """The choice among layouts; None if all layouts are tried."""
        self._drawn_by = settings.seed
        """The seed for the strategy, and for samples of a large space. A resumed run takes the seed from the header."""

    @functools.cached_property
    def compile_workers(self) -> Sequence[CompileWorker]:
        """The machine's compile workers, which exist only after the machine has found its devices."""
        return self.machine.compile_workers()

    async def begin(self) -> Plan | None:
        """Find the work and the devices, make the plan, and record the start. Returns None if no work is left."""
        state, settings, resumes = self.recorder.state, self.settings, self.recorder.state.header is not None
        spec, target, devices = await self._describe()
        self.run.spec, self.run.limits = spec, devices[0].limits if devices else DeviceLimits()
        self.run.figures = figures_for(target, devices)
        strategy = settings.strategy_in(spec, state.header, self.run.figures)
        header = settings.header(spec, target, devices, self.machine.versions(), strategy)
        now, known = RunStarted(seq=0, time=0, mono=0.0, **header), KnownResult()
        if settings.recall is not None and not resumes:
            known = await self._take_over(settings.recall, spec, now)
        if known.whole:
            self.recalled = known.whole
            return None
        before, accepted, advice, remarks = state.header, tuple[str, ...](), known.advice, [*spec.remarks]
        if before is not None:
            accepted, advice, remarks = await self._accepted(now, devices, resumes=resumes), before.advice, []
            if settings.advise is not None and not advice:
                remarks = ["warm is ignored: the run began without advice, and continues without it"]
        elif settings.advise is not None:
            more, further = await anyio.to_thread.run_sync(settings.advise, spec, devices, abandon_on_cancel=True)
            advice, remarks = (*advice, *more), [*remarks, *further]
        plan = await anyio.to_thread.run_sync(self._plan, spec, strategy, advice, abandon_on_cancel=True)
        if before is not None and finished(state, settings.budget) and plan.empty:
            return None
        await self.machine.prepare(plan.to_compile)
        if before is None:
            self.recorder.emit(RunStarted, **header, advice=advice)
        else:
            self._record_resumed(plan, {"versions": now.versions, "accepted": accepted})
        for remark in remarks:
            self.recorder.emit(Warned, message=remark)
        self.run.outcomes.sync_soon()
        return plan

    async def _describe(self) -> tuple[WorkloadSpec, Target, Sequence[DeviceInfo]]:
        """Describe the workload and, at the same time, find the target and the devices."""
        specs, header = list[WorkloadSpec](), self.recorder.state.header
        self._drawn_by = self.settings.seed if header is None else int(header.settings.get("seed") or 0)

        async def describe() -> None:
            specs.append(await self.machine.describe(seed=self._drawn_by))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(describe)
            target, devices = await self.machine.discover()
        return specs[0], target, devices

    async def _take_over(self, recall: Recall, spec: WorkloadSpec, now: RunStarted) -> KnownResult:
        """Look up earlier results, after waiting for other runs that do the same work. If the kernels are the same,
        record the results' events in this run."""
        kernels = functools.partial(anyio.from_thread.run, cast(Any, self._ir_digests))
        look_up = functools.partial(recall, now, spec, kernels, self.settings.journal)
        look = functools.partial(anyio.to_thread.run_sync, look_up, abandon_on_cancel=True)
        if (known := await look()) is None:
            with suppress(Warning):  # the program may turn warnings into errors
                warn_caller(f"another run is tuning {spec.name}; this run waits for its result", RuntimeWarning)
        while known is None and not self.run.stopping:
            await anyio.sleep(POLL_S)
            known = await look()
            await self.recorder.go_on(())  # restart the clock, because the wait does not count
        known = known or KnownResult()
        if known.events and not known.whole and await self._kernel_changes(State.of(known.events)):
            return KnownResult()
        if known.events:
            await self.recorder.take_over(known.events)
        return known

    async def _accepted(self, now: RunStarted, devices: Sequence[DeviceInfo], *, resumes: bool) -> tuple[str, ...]:
        """Return the accepted differences from the journal's work. Raises `JournalError` for other differences."""
        state, accept = self.recorder.state, self.settings.accept
        accepted = check_same_work(state, now, devices, accept)
        if resumes and not any(text.startswith(("kernel", "versions")) for text in accepted):
            others = await self._kernel_changes(state)
            accepted += all_accepted(others, accept, "the journal records different kernels", RESUME)
        return accepted

    def _plan(self, spec: WorkloadSpec, strategy: str, advice: tuple[Advice, ...]) -> Plan:
        """Make the plan, the choice of layouts and, if the strategy needs no survey, the strategy. Runs in a thread."""
        state, settings = self.recorder.state, self.settings
        plan = Plan(
            spec,
            state,
            settings.strategy if isinstance(settings.strategy, Strategy) else strategy,
            seed=self._drawn_by,
            budget=settings.budget,
            default=spec.default if state.header is None else state.header.default,
            advice=advice,
            prior=settings.prior and self.run.figures is not None,
        )
        self.layouts = layout_choice(spec, plan.candidates, settings.compile.layouts)
        if not plan.to_survey:
            self.strategy = plan.strategy(state)
        return plan

    async def _ir_digests(self, candidates: Iterable[Candidate]) -> Mapping[int, str]:
        left, digests = [*candidates], dict[int, str]()

        async def serve(worker: CompileWorker) -> None:
            while left:
                answers = await worker.run(ElaborateJob((left.pop(),), digests=True))
                if isinstance(answers, list) and isinstance(answers[0], Elaborated):
                    digests[answers[0].index] = answers[0].ir_digest

        async with anyio.create_task_group() as tasks:
            for worker in self.compile_workers:
                tasks.start_soon(serve, worker)
        return digests

    async def _kernel_changes(self, state: State) -> list[tuple[str, str]]:
        """Return ("kernel", sentence) if the kernels that the journal lowered differ from the current kernels."""
        lowered = [entry for entry in state.entries.values() if entry.lowered]
        now = await self._ir_digests(Candidate(e.index, e.key, e.config) for e in lowered if e.ir_digest)
        if other := [e.index for e in lowered if e.ir_digest and now.get(e.index) != e.ir_digest]:
            what = f"{len(other)} of {len(lowered)} candidates, such as {other[0]}, have different kernels now"
            return [("kernel", f"{what}: a helper, a value or an environment variable that they use has changed")]
        if unknown := [e.index for e in lowered if not e.ir_digest]:
            what = f"the journal does not identify the kernels of {len(unknown)} candidates, such as {unknown[0]}"
            return [("kernel", f"{what}: an older atune wrote the journal, or the kernels include your own files")]
        return []

    def _record_resumed(self, plan: Plan, how: Mapping[str, Any]) -> None:
        """Record that the run resumes, and record the suspects as failures."""
        state, emit, journal = self.recorder.state, self.recorder.emit, self.recorder.journal
        torn_bytes = 0 if journal is None else journal.torn_bytes
        emit(RunResumed, part=state.resumed.part + 1 if state.resumed else 1, **how)
        if torn_bytes:
            emit(JournalRepaired, cut_bytes=torn_bytes)
        for index, device in plan.suspects.items():
            message = "suspect: the whole program died twice while this candidate was being measured"
            emit(BenchmarkFailed, index=index, device=device, kind="suspect", message=message)
