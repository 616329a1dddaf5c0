"""The engine: one task group that proposes, compiles, measures and records candidates, on any `Machine`.

    strategy ─▶ proposals ─▶ compile workers ─▶ artifacts ─▶ device workers ─▶ final

Proposals and artifacts are bounded memory object streams. Each compile worker has a coroutine of `compile_stage`, and
each device has a coroutine of `benchmark_stage`. The scheduler decides what a free compile worker does next, and
`final` runs the final. The engine itself never compiles, loads or runs a kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.to_thread

from atune.engine.benchmark_stage import BenchmarkStage
from atune.engine.compile_stage import CompilerStates, CompileStage, find_roles
from atune.engine.final import FinalStage
from atune.engine.interfaces import CompileWorker, Machine
from atune.engine.plan import Plan
from atune.engine.proposing import ProposeStage
from atune.engine.run_state import Recorder, Run, keep_time
from atune.engine.scheduler import CompileState
from atune.engine.screen import Screen
from atune.engine.settings import EngineSettings
from atune.engine.start import Start
from atune.journal.events import RunFinished, Warned
from atune.journal.reader import found_in
from atune.journal.result import roles_with
from atune.model.artifact import Artifact, Lowered, fitting
from atune.model.candidate import Candidate
from atune.model.jobs import LowerJob
from atune.workload.pickling import edited_since

PROPOSALS_PER_WORKER = 2
"""Number of proposed candidates that may wait for each compile worker."""
ARTIFACTS_PER_DEVICE = 64
"""Number of artifacts that may wait for each device. When the queue is full, compile workers wait."""


class Engine:
    """One run. The method `run` does all the work, and `stop` ends the run early but keeps its measurements."""

    def __init__(
        self,
        machine: Machine,
        recorder: Recorder,
        settings: EngineSettings,
        *,
        keep: Callable[[Artifact], Artifact] = lambda artifact: artifact,
    ) -> None:
        self.machine, self.recorder, self.settings = machine, recorder, settings
        self.keep = keep
        self._began, self._run = time.time(), Run(recorder)
        self._start = Start(machine, self._run, settings)
        self._early_warnings = list[str]()
        """Warnings that came before the run's start was recorded."""
        self._ended_by = "exhausted"

    def _warn(self, message: str) -> None:
        """Record a warning, or keep it until the run's start is recorded."""
        if self.recorder.emitted:
            self.recorder.emit(Warned, message=message)
        else:
            self._early_warnings.append(message)

    def stop(self, reason: str = "stopped") -> None:
        """Propose no candidates and start no jobs from now on. The final follows when the jobs under way have ended."""
        self._run.stop(reason)

    @property
    def recalled(self) -> str:
        """The journal of the earlier run whose result this run took over; empty if this run did any work."""
        return self._start.recalled

    async def run(self) -> None:
        """Tune. Cancellation kills every process, and keeps everything that was recorded.

        Raises `UsageError` for mistakes of the caller, `DevicesLost` if no device is left, and `MachineError` if the
        machine is at fault, for example if a disk is full.
        """
        async with self.machine.open(self._warn, self._run.wake):
            plan = await self._start.begin()
            if plan is not None:
                await self._work(plan)
                await self._finish()
        await self.recorder.sync()

    async def _work(self, plan: Plan) -> None:
        """Compile and measure the remaining candidates at the same time, then run the final."""
        run, settings, workers = self._run, self.settings, self._start.compile_workers
        devices = self.machine.device_workers()
        for message in self._early_warnings:
            self._warn(message)
        propose, proposals = anyio.create_memory_object_stream[Candidate](PROPOSALS_PER_WORKER * len(workers))
        depth = ARTIFACTS_PER_DEVICE * len(devices) if settings.pipeline else float("inf")
        deliver, artifacts = anyio.create_memory_object_stream[Artifact](depth)
        scheduled = CompileState(
            len(workers), len(devices), plan.to_compile, settings.compile.group_size, settings.pipeline
        )
        skips = settings.budget.limited and settings.pipeline
        screen = Screen(run, plan.codes, skips=skips, layouts=self._start.layouts)
        states = CompilerStates(run, plan.candidate)
        proposing = ProposeStage(self._start, plan, scheduled, screen)
        compiling = CompileStage(
            run, scheduled, proposals, screen.judge, deliver.send, hints=self.machine.hints, states=states,
            timeout_s=settings.compile.compile_timeout_s,
        )  # fmt: skip
        measuring = BenchmarkStage(run, devices, pipeline=settings.pipeline)
        final = FinalStage(run, settings.benchmark, measuring, workers, plan.candidate, settings.alone)

        async with anyio.create_task_group() as until_ended:
            until_ended.start_soon(run.outcomes.keep_synced)
            until_ended.start_soon(compiling.end_hopeless, self.machine.sleep)
            until_ended.start_soon(self._find_and_compile, plan, workers[0], compiling)
            for compile_worker in workers[1:]:  # they may still compare compiler states after all is measured
                until_ended.start_soon(compiling.serve, compile_worker)
            async with proposals, deliver, artifacts, anyio.create_task_group() as tasks:
                tasks.start_soon(keep_time, run, settings.budget.seconds)
                tasks.start_soon(proposing.serve, workers, propose)
                tasks.start_soon(measuring.serve, artifacts)
                await compiling.ended()
                deliver.close()
                await run.measured.wait()
            await run.outcomes.acknowledge()
            await proposing.tell()
            self._ended_by = self._reason(plan)
            await final.time_finalists(await states.settle())
            until_ended.cancel_scope.cancel()

    async def _find_and_compile(self, plan: Plan, worker: CompileWorker, compiling: CompileStage) -> None:
        """Let the first compile worker find the roles of the parameters, and then compile."""
        run = self._run
        if plan.default and run.recorder.state.entry(plan.default[0].index).lowered:  # an earlier part lowered it
            lowered = await worker.run(LowerJob(plan.default[0]))
            run.default = lowered if isinstance(lowered, Lowered) else None
        await find_roles(run, worker, [*plan.default, *plan.candidates.values()])
        await compiling.serve(worker)

    def _reason(self, plan: Plan) -> str:
        """Return the `reason` of `RunFinished` for a run that was not stopped."""
        strategy, most = self._start.strategy, self.settings.budget.most(plan.total)
        if strategy is not None and strategy.enough is not None and strategy.enough.reached:
            return "enough"
        return "budget" if most is not None and most < plan.total else "exhausted"

    async def _finish(self) -> None:
        header = self.recorder.state.header
        if header and (file := await anyio.to_thread.run_sync(edited_since, header.origin, self._began)):
            self._warn(f"{file} was edited during the run; the results are for the version that was loaded")
        state, reason = self.recorder.state, self._run.stopping or self._ended_by
        index, winner, roles = state.winner, None, self._run.roles
        if index is not None and (built := self._run.artifacts.get(index)) is not None:
            roles = fitting(built.roles, roles)
            try:
                winner = await anyio.to_thread.run_sync(self.keep, built)
            except OSError as error:
                if error.strerror not in state.warnings:
                    self.recorder.emit(Warned, message=f"the winner's library could not be kept: {error}")
        if index is not None and (outcome := state.outcome(index)) is not None:
            roles = roles_with(roles, outcome)
        found = await anyio.to_thread.run_sync(found_in, state, reason)  # in a thread: there may be many candidates
        self.recorder.emit(
            RunFinished,
            wall_s=round(self.recorder.part_s, 4),
            reason=reason,
            kernel=winner,
            roles=roles,
            found=found,
        )
