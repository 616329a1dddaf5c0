"""The engine: one task group that proposes, compiles, measures and records, over any `Machine`.

    strategy ─▶ proposals ─▶ compile workers ─▶ artifacts ─▶ device workers ─▶ final

Proposals and artifacts are bounded memory object streams. The scheduler decides what a free compile worker does next.
The engine itself never compiles, loads or runs anything. `compile_stage` and `benchmark_stage` serve the workers,
`final` runs the final, and `proof` compiles its winner plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from atune.engine.advising import Advise, advised
from atune.engine.aside import computed
from atune.engine.asking import Asking
from atune.engine.benchmark_stage import BenchmarkStage
from atune.engine.compile_cost import compile_deadline_s
from atune.engine.compile_stage import CompileStage
from atune.engine.final import FinalStage, Find
from atune.engine.header import header_fields
from atune.engine.interfaces import Machine
from atune.engine.plan import Plan, check_same_work, finished, planned, record_resumed
from atune.engine.proof import Proofs, ProofStage
from atune.engine.proposing import Proposing
from atune.engine.run_state import Run, keep_time
from atune.engine.scheduler import CompileState
from atune.engine.screen import LayoutChoice, Screen, layout_choice
from atune.engine.strategies import Search, strategy_name
from atune.journal.events import RunFinished, RunStarted, Warned
from atune.journal.recorder import Recorder
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo, Target, common_limits
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.processes.background import background
from atune.search import forest
from atune.search.advice import no_advice
from atune.search.choosing import kind_of, may_be_forest
from atune.search.devices import Figures
from atune.search.interface import Guarded, Strategy
from atune.search.prior import AUTO, Chosen, OwnPrior
from atune.search.surveyed import figures_for, there_is
from atune.workload.workload import WorkloadSpec

PROPOSALS_PER_LANE = 2
"""Proposed candidates that wait for each compile worker."""
ARTIFACTS_PER_DEVICE = 64
"""Artifacts that may wait for each device. When there are more, compile workers wait."""

Keep = Callable[[Artifact], Artifact]


class Engine:
    """One run. `run` does everything; `stop` ends it early and keeps what was measured."""

    def __init__(
        self,
        machine: Machine,
        recorder: Recorder,
        *,
        compile: CompileSettings,
        benchmark: BenchmarkSettings,
        strategy: str | Strategy | None = None,
        prior: Chosen = AUTO,
        seed: int = 0,
        budget: Budget | None = None,
        pipeline: bool = True,
        keep: Keep = lambda artifact: artifact,
        find: Find = lambda artifact: None,
        accept: Sequence[str] = (),
        advise: Advise = no_advice,
    ) -> None:
        self.machine, self.recorder = machine, recorder
        self.compile, self.benchmark = compile, benchmark
        self.strategy, self.prior, self.seed = strategy, prior, seed
        self.strategy_name = ""
        """The strategy's name as in the header, once the space is known."""
        self.budget, self.pipeline, self.keep = budget or Budget(), pipeline, keep
        self.find, self.accept, self.advise = find, accept, advise
        self._run = Run(recorder)
        self._early_warnings: list[str] | None = []
        """Warnings from before the start is recorded; None afterwards."""
        self._ended_by = "exhausted"
        self._strategy: Guarded | None = None
        """None until it is made, which waits for the survey of the space if there is one."""
        self._figures: Figures | None = None
        self._drawn_by = seed
        """The seed of the strategy, and of the draw from a large space: that of the header."""

    def _warn(self, message: str) -> None:
        """Record a warning of the machine, once the run's start is recorded."""
        if self._early_warnings is None:
            self.recorder.emit(Warned, message=message)
        else:
            self._early_warnings.append(message)

    def _record_warnings(self) -> None:
        early, self._early_warnings = self._early_warnings or [], None
        for message in early:
            self._warn(message)

    def stop(self, reason: str = "stopped") -> None:
        """Propose and start nothing more. Calls under way end, then the final follows."""
        self._run.stop(reason)

    async def run(self) -> None:
        """Tune. Cancellation kills every process; what was recorded stays.

        Raises `UsageError` for the caller's mistakes, `DevicesLost` when no device is left, and `JournalError`.
        """
        async with self.machine.open(self._warn, self._run.wake), background() as tasks:
            if may_be_forest(self.strategy, self.budget, learns=self.pipeline):
                tasks.start_soon(partial(anyio.to_thread.run_sync, forest.preload, abandon_on_cancel=True))
            spec, plan = await self._describe()
            if plan is not None:
                await self._work(plan)
                await self._finish(spec)
        await self.recorder.sync()

    async def _work(self, plan: Plan) -> None:
        """Compile and measure the work that is left, run the final, and prove its winner."""
        run, machine = self._run, self.machine
        compile_workers, device_workers = machine.compile_workers(), machine.device_workers()
        self._record_warnings()
        n = len(compile_workers)
        scheduled = CompileState(n, len(device_workers), plan.to_compile, self.compile.group_size, self.pipeline)
        layouts = await self._layouts(plan)
        asking = Asking(run, plan, scheduled)
        proposing = Proposing(
            run, plan, asking, machine.look_up,
            strategy=self._strategy, prior=self.prior, figures=self._figures,
            seed=self.seed, seconds=self.budget.seconds, layouts=layouts,
        )  # fmt: skip
        run.outcomes.tell = asking.take_note
        propose, proposals = anyio.create_memory_object_stream[Candidate](PROPOSALS_PER_LANE * n)
        depth = ARTIFACTS_PER_DEVICE * len(device_workers) if self.pipeline else float("inf")
        deliver, artifacts = anyio.create_memory_object_stream[Artifact](depth)
        proofs = Proofs(run, plan.candidates, compile_workers, wanted=self.compile.prove)
        screen = Screen(run, plan.codes, skips=self.budget.limited and self.pipeline, layouts=layouts)

        async def hand_on(lowered: Lowered, artifact: Artifact) -> None:
            proofs.remember(lowered, artifact)
            await deliver.send(artifact)

        compiling = CompileStage(
            run, scheduled, proposals, screen.judge, hand_on, hints=machine.hints,
            deadline_s=partial(compile_deadline_s, self.recorder.state, most_s=self.compile.compile_timeout_s),
            sleep=machine.sleep,
        )  # fmt: skip
        measuring = BenchmarkStage(run, device_workers, pipeline=self.pipeline)
        final = FinalStage(run, self.benchmark, measuring, proofs, compile_workers, plan.candidates, self.find)
        async with anyio.create_task_group() as syncing:
            syncing.start_soon(run.outcomes.keep_synced)
            async with proposals, deliver, artifacts, anyio.create_task_group() as tasks:
                tasks.start_soon(keep_time, run, self.budget.seconds)
                propose_all = partial(proposing.serve, retries=self.pipeline)
                tasks.start_soon(propose_all, compile_workers, scheduled, propose, screen)
                for compile_worker in compile_workers:
                    tasks.start_soon(compiling.serve, compile_worker)
                tasks.start_soon(measuring.serve, artifacts)
                await compiling.ended()
                deliver.close()
                await run.measured.wait()
            self._note_extent(plan)
            await run.outcomes.acknowledge()
            asking.tell()
            await ProofStage(run, proofs, measuring, final.hold).settle()
            syncing.cancel_scope.cancel()

    def _note_extent(self, plan: Plan) -> None:
        """Note whether the budget admitted only a part of the space."""
        if (most := self.budget.most(plan.total)) is not None and most < plan.total:
            self._ended_by = "budget"

    async def _describe(self) -> tuple[WorkloadSpec, Plan | None]:
        """Find out what to tune and where, and record the start. Returns no plan if a resumed run has no work left."""
        specs: list[WorkloadSpec] = []
        header = self.recorder.state.header
        self._drawn_by = self.seed if header is None else int(header.settings.get("seed") or 0)

        async def describe() -> None:
            specs.append(await self.machine.describe(seed=self._drawn_by))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(describe)
            target, devices = await self.machine.discover()
        spec = specs[0]
        self._run.spec, self._run.limits = spec, common_limits(devices)
        plan = await self._plan(spec, target, devices)
        if plan is not None:
            self._run.outcomes.sync_soon()
        return spec, plan

    async def _plan(self, spec: WorkloadSpec, target: Target, devices: Sequence[DeviceInfo]) -> Plan | None:
        """Plan and record the start. Returns None if a resumed run has no work left."""
        state, budget, before = self.recorder.state, self.budget, self.recorder.state.header
        layout_choice(spec, {}, self.compile.layouts)
        self._figures = figures_for(target, devices)
        prior = there_is(self.prior, self._figures)
        self.strategy_name = strategy_name(
            self.strategy, before, spec.total, budget,
            learns=self.pipeline, prior=prior, own_prior=isinstance(self.prior, OwnPrior),
        )  # fmt: skip
        header = await computed(spec, partial(self._header, spec, target, devices))
        remarks, accepted, advice = list[str](), tuple[str, ...](), () if before is None else before.advice
        if before is None:
            advice, remarks = await advised(self.advise, spec, devices, self.machine.look_up)
        else:
            accepted = check_same_work(state, RunStarted(seq=0, time=0, mono=0, **header), devices, self.accept)
        own = None if isinstance(self.strategy, str) else self.strategy
        search = Search(own or self.strategy_name, self._drawn_by, budget, spec.default, advice)
        plan = await computed(spec, partial(planned, spec, search, state, prior=prior))
        await self._make_strategy(plan, spec)
        if before is None:
            active, unused = self.machine.accelerators(plan.to_compile)
            header |= {"total": plan.total, "advice": advice, "accelerators": active, "unused": dict(unused)}
            self.recorder.emit(RunStarted, **header)
            for remark in (*spec.remarks, *remarks):
                self.recorder.emit(Warned, message=remark)
            return plan
        if finished(state, budget) and plan.empty:
            return None
        record_resumed(self.recorder, self.machine, plan, header["versions"], accepted)
        if self.advise is not no_advice and not before.advice:
            self.recorder.emit(Warned, message="the run began without advice and continues without it: warm is ignored")
        return plan

    async def _make_strategy(self, plan: Plan, spec: WorkloadSpec) -> None:
        """Make the strategy, if it need not wait for the survey."""
        if not plan.to_survey:
            quick = kind_of(plan.name).quick  # others may import libraries, and fit models
            self._strategy = await computed(spec, partial(plan.strategy, self.recorder.state), quick=quick)

    def _header(self, spec: WorkloadSpec, target: Target, devices: Sequence[DeviceInfo]) -> dict[str, Any]:
        """Return the fields of `RunStarted` that are known before there is a plan."""
        return header_fields(
            spec,
            target,
            devices,
            self.machine.versions(),
            strategy=self.strategy_name,
            compile=self.compile,
            benchmark=self.benchmark,
            pipeline=self.pipeline,
            seed=self.seed,
            budget=self.budget,
            prior=self.prior,
        )

    async def _finish(self, spec: WorkloadSpec) -> None:
        built, winner = self.recorder.state.winner, None
        if built in self._run.artifacts:
            try:
                winner = await anyio.to_thread.run_sync(self.keep, self._run.artifacts[built])
            except OSError as error:
                self.recorder.emit(Warned, message=f"the winner's library could not be kept: {error}")
        for message in await anyio.to_thread.run_sync(self.machine.end_warnings):
            self.recorder.emit(Warned, message=message)
        self.recorder.emit(
            RunFinished,
            wall_s=round(self.recorder.part_s, 4),
            reason=self._run.stopping or self._ended_by,
            kernel=winner,
            out_idx=spec.out_idx,
        )

    async def _layouts(self, plan: Plan) -> LayoutChoice | None:
        """Return what chooses layouts; None where all are tried. Raises `UsageError`."""
        spec, most = self._run.spec, self.compile.layouts
        return await computed(spec, partial(layout_choice, spec, plan.candidates, most), quick=most is None)
