"""The engine: one task group that proposes, compiles, measures and records, over any `Machine`.

    strategy ─▶ proposals ─▶ compile workers ─▶ artifacts ─▶ device workers ─▶ final

Proposals and artifacts are bounded memory object streams. The scheduler decides what a free compile worker does next.
The engine itself never compiles, loads or runs anything. `compile_stage` and `benchmark_stage` serve the workers,
`final` runs the final, and `proof` compiles its winner plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread

from atune.engine.background import background
from atune.engine.benchmark_stage import BenchmarkStage
from atune.engine.compile_stage import CompileStage
from atune.engine.final import FinalStage, Find
from atune.engine.interfaces import Machine
from atune.engine.plan import Plan
from atune.engine.proof import Proofs, ProofStage
from atune.engine.proposing import ProposeStage, StrategyDriver
from atune.engine.run_state import Run, keep_time
from atune.engine.scheduler import CompileState
from atune.engine.screen import Screen
from atune.engine.search.interface import Strategy
from atune.engine.search.prior import AUTO, Chosen
from atune.engine.search.warm_start import no_advice
from atune.engine.start import Advise, Start
from atune.journal.events import RunFinished, Warned
from atune.journal.recorder import Recorder
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings

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
        self.budget, self.pipeline = budget or Budget(), pipeline
        self.keep, self.find = keep, find
        self._run = Run(recorder)
        self._start = Start(
            machine, self._run, compile=compile, benchmark=benchmark, strategy=strategy, prior=prior, seed=seed,
            budget=self.budget, pipeline=pipeline, accept=accept, advise=advise,
        )  # fmt: skip
        self._early_warnings: list[str] | None = []
        """Warnings from before the start is recorded; None afterwards."""
        self._ended_by = "exhausted"

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
            tasks.start_soon(self._start.preload)
            plan = await self._start.begin()
            if plan is not None:
                await self._work(plan)
                await self._finish()
        await self.recorder.sync()

    async def _work(self, plan: Plan) -> None:
        """Compile and measure the work that is left, run the final, and prove its winner."""
        run, machine, start = self._run, self.machine, self._start
        compile_workers, device_workers = machine.compile_workers(), machine.device_workers()
        self._record_warnings()
        n = len(compile_workers)
        scheduled = CompileState(n, len(device_workers), plan.to_compile, self.compile.group_size, self.pipeline)
        layouts = await start.layouts(plan)
        asking = StrategyDriver(run, plan, scheduled)
        proposing = ProposeStage(
            run, plan, asking, machine.look_up,
            strategy=start.strategy, prior=start.prior, figures=start.figures,
            seed=start.seed, seconds=self.budget.seconds, layouts=layouts,
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
            run, scheduled, proposals, screen.judge, hand_on, hints=machine.hints, proofs=proofs,
            timeout_s=self.compile.compile_timeout_s, sleep=machine.sleep,
        )  # fmt: skip
        measuring = BenchmarkStage(run, device_workers, pipeline=self.pipeline)
        final = FinalStage(run, self.benchmark, measuring, proofs, compile_workers, plan.candidates, self.find)
        async with anyio.create_task_group() as until_proven:
            until_proven.start_soon(run.outcomes.keep_synced)
            for compile_worker in compile_workers:  # one may still prove the leader during the final
                until_proven.start_soon(compiling.serve, compile_worker)
            async with proposals, deliver, artifacts, anyio.create_task_group() as tasks:
                tasks.start_soon(keep_time, run, self.budget.seconds)
                propose_all = partial(proposing.serve, retries=self.pipeline)
                tasks.start_soon(propose_all, compile_workers, scheduled, propose, screen)
                tasks.start_soon(measuring.serve, artifacts)
                await compiling.ended()
                deliver.close()
                await run.measured.wait()
            self._note_extent(plan)
            await run.outcomes.acknowledge()
            asking.tell()
            await ProofStage(run, proofs, measuring, final.hold).settle()
            until_proven.cancel_scope.cancel()

    def _note_extent(self, plan: Plan) -> None:
        """Note whether the budget admitted only a part of the space."""
        if (most := self.budget.most(plan.total)) is not None and most < plan.total:
            self._ended_by = "budget"

    async def _finish(self) -> None:
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
            out_idx=self._run.spec.out_idx,
        )
