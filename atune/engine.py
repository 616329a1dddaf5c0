"""The engine: one task group that proposes, compiles, measures and records, over any `Backend`.

    strategy ─▶ proposals ─▶ compile lanes ─▶ artifacts ─▶ device lanes ─▶ final

Proposals and artifacts are bounded memory object streams; what a free compile lane does next is the scheduler's
decision. The engine itself never compiles, loads or runs anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from atune.artifact import Artifact, Failure, Lowered
from atune.backend import Backend, CompileLane, DeviceLane, GroupFailed
from atune.candidate import Candidate, config_key, thaw
from atune.device import DeviceLimits
from atune.errors import AtuneError, DevicesLost, WorkerError
from atune.events import (
    SCHEMA,
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkStarted,
    BestChanged,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    DeviceLost,
    DeviceReady,
    FinalOrdered,
    GroupSplit,
    ReferenceMeasured,
    RunFinished,
    RunStarted,
    Warned,
)
from atune.measurement import Measurement
from atune.recorder import Recorder
from atune.scheduler import CompileState, Lower, halves
from atune.screen import screen
from atune.settings import BenchmarkSettings, Budget, CompileSettings
from atune.strategy import Strategy, make_strategy
from atune.workload import WorkloadSpec

PROPOSALS_PER_LANE = 2
"""Proposed candidates that wait for each compile lane."""
ARTIFACTS_PER_DEVICE = 64
"""Artifacts that wait for each device before the compile lanes have to."""
DEVICE_STARTS = 3
"""Times that starting a device's process may fail in a row before the device is given up."""

Keep = Callable[[Artifact], Artifact]


class Engine:
    """One run. `run` does it all; `stop` ends it early, in order, with what was measured."""

    def __init__(
        self,
        backend: Backend,
        recorder: Recorder,
        *,
        compile: CompileSettings,
        benchmark: BenchmarkSettings,
        strategy: str = "exhaustive",
        seed: int = 0,
        budget: Budget | None = None,
        pipeline: bool = True,
        keep: Keep = lambda artifact: artifact,
    ) -> None:
        self.backend, self.recorder = backend, recorder
        self.compile, self.benchmark = compile, benchmark
        self.strategy_name, self.seed = strategy, seed
        self.budget, self.pipeline, self.keep = budget or Budget(), pipeline, keep
        self.artifacts: dict[int, Artifact] = {}
        """Libraries of the candidates that were measured: the final's."""
        self._codes: dict[str, int] = {}
        self._changed = anyio.Event()
        self._compiled = anyio.Event()
        self._stopping = ""
        self._limits = DeviceLimits()
        self._starting = 0
        self.state: CompileState

    def stop(self, reason: str = "stopped") -> None:
        """Propose and start nothing more; what is under way ends, then comes the final."""
        self._stopping = self._stopping or reason
        self._wake()

    async def run(self) -> None:
        """Tune. Cancellation kills every process; what was recorded stays.

        Raises `UsageError` for the caller's mistakes, `DevicesLost` when no device is left, and `JournalError`.
        """
        async with self.backend.open():
            spec, strategy = await self._describe()
            candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(map(thaw, spec.configs))]
            proposable = min(spec_total := len(candidates), self.budget.candidates or spec_total)
            compile_lanes, device_lanes = self.backend.compile_lanes(proposable), self.backend.device_lanes()
            self.backend.on_change(self._wake)
            self.state = CompileState(
                lanes=len(compile_lanes),
                devices=len(device_lanes),
                total=proposable,
                group_size=self.compile.group_size,
                pipeline=self.pipeline,
            )
            propose, self._proposals = anyio.create_memory_object_stream[Candidate](
                PROPOSALS_PER_LANE * len(compile_lanes)
            )
            depth = ARTIFACTS_PER_DEVICE * len(device_lanes) if self.pipeline else float("inf")
            deliver, artifacts = anyio.create_memory_object_stream[Artifact](depth)
            self._starting = len(device_lanes)
            async with anyio.create_task_group() as syncing:
                syncing.start_soon(self._sync_now_and_then)
                async with anyio.create_task_group() as timed:
                    timed.start_soon(self._keep_time)
                    async with anyio.create_task_group() as tasks, self._proposals, deliver, artifacts:
                        tasks.start_soon(self._propose, strategy, candidates, propose)
                        for compile_lane in compile_lanes:
                            tasks.start_soon(self._compile_lane, compile_lane, strategy, deliver.clone())
                        for device_lane in device_lanes:
                            tasks.start_soon(self._device_lane, device_lane, strategy, artifacts.clone())
                        deliver.close()
                        artifacts.close()
                        await self._compile_ended()
                    timed.cancel_scope.cancel()
                await self._final(device_lanes)
                syncing.cancel_scope.cancel()
            await self._finish(spec)
        await self.recorder.sync()

    async def _describe(self) -> tuple[WorkloadSpec, Strategy]:
        """Learn what to tune and on what, and write the header."""
        specs: list[WorkloadSpec] = []

        async def describe() -> None:
            specs.append(await self.backend.describe())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(describe)
            target, devices = await self.backend.discover()
        spec = specs[0]
        strategy = make_strategy(self.strategy_name, len(spec.configs), self.seed)
        limits = [d.limits for d in devices]
        smem = [limit.smem_bytes for limit in limits if limit.smem_bytes is not None]
        threads = [limit.threads for limit in limits if limit.threads is not None]
        self._limits = DeviceLimits(min(smem, default=None), min(threads, default=None))
        settings = {
            "compile": msgspec.to_builtins(self.compile),
            "benchmark": msgspec.to_builtins(self.benchmark),
            "pipeline": self.pipeline,
            "seed": self.seed,
            "budget": msgspec.to_builtins(self.budget),
        }
        keys = "".join(config_key(config) for config in spec.configs)
        self.recorder.emit(
            RunStarted,
            schema=SCHEMA,
            workload=spec.name,
            origin=spec.origin,
            fingerprint=spec.fingerprint,
            space=hashlib.sha256(keys.encode()).hexdigest(),
            total=len(spec.configs),
            default=spec.default,
            arguments=spec.arguments,
            target=target,
            devices=tuple(d.id for d in devices),
            strategy=strategy.name,
            settings=settings,
            versions=self.backend.versions(),
        )
        return spec, strategy

    async def _propose(
        self, strategy: Strategy, candidates: Sequence[Candidate], propose: MemoryObjectSendStream[Candidate]
    ) -> None:
        with propose:
            for _ in range(self.state.total):
                index = strategy.ask()
                if index is None or self._stopping:
                    break
                candidate = candidates[index]
                self.recorder.emit(CandidateProposed, index=index, key=candidate.key, config=candidate.config)
                await propose.send(candidate)
                self._wake()
        self.state.proposing = False
        if self.budget.candidates is not None and self.state.total < len(candidates):
            self._stopping_reason = "budget"
        self._wake()

    _stopping_reason = "exhausted"

    async def _compile_lane(
        self, lane: CompileLane, strategy: Strategy, deliver: MemoryObjectSendStream[Artifact]
    ) -> None:
        with deliver:
            while True:
                self._look()
                job = self.state.next_job()
                if job is None:
                    if self.state.finished:
                        self._wake()
                        return
                    await self._changed.wait()
                    continue
                self.state.busy += 1
                try:
                    if isinstance(job, Lower):
                        await self._lower(lane, self._proposals.receive_nowait(), strategy, deliver)
                    else:
                        await self._build(lane, job.group, job.reason, strategy, deliver)
                finally:
                    self.state.busy -= 1
                    self._wake()

    async def _lower(
        self,
        lane: CompileLane,
        candidate: Candidate,
        strategy: Strategy,
        deliver: MemoryObjectSendStream[Artifact],
    ) -> None:
        self.state.lowering += 1
        try:
            await self._lower_one(lane, candidate, strategy, deliver)
        finally:
            self.state.lowering -= 1
            self.state.seen += 1

    async def _lower_one(
        self,
        lane: CompileLane,
        candidate: Candidate,
        strategy: Strategy,
        deliver: MemoryObjectSendStream[Artifact],
    ) -> None:
        answer = await lane.lower(candidate)
        emit = self.recorder.emit
        if isinstance(answer, Failure):
            emit(
                BuildFailed,
                lane=lane.name,
                index=answer.index,
                kind=answer.kind,
                message=answer.message,
                detail=answer.detail,
            )
            strategy.tell(candidate.index, None)
            return
        verdict, why = screen(answer.facts, self._limits)
        emit(
            CandidateLowered,
            lane=lane.name,
            index=answer.index,
            code_key=answer.code_key,
            facts=answer.facts,
            seconds=answer.seconds,
            deferred=why if verdict == "defer" else "",
        )
        same_as = self._codes.setdefault(answer.code_key, answer.index)
        if same_as != answer.index:
            emit(CandidateAliased, lane=lane.name, index=answer.index, same_as=same_as)
            strategy.tell(candidate.index, None)
        elif verdict == "prune":
            emit(CandidatePruned, lane=lane.name, index=answer.index, reason=why)
            strategy.tell(candidate.index, None)
        elif (known := await self._find(lane, answer)) is not None:
            await deliver.send(known)
        else:
            (self.state.deferred if verdict == "defer" else self.state.ready).append(answer)

    async def _find(self, lane: CompileLane, lowered: Lowered) -> Artifact | None:
        """Return the candidate's library where an earlier run built it; deferring such a candidate saves nothing."""
        known = await lane.find(lowered)
        if known is not None:
            file = known.path.rpartition("/")[2]
            self.recorder.emit(
                ArtifactBuilt,
                lane=lane.name,
                indices=(known.index,),
                file=file,
                seconds=0.0,
                reason="compiled before",
                compiler=known.compiler,
                why=known.why,
            )
        return known

    async def _build(
        self,
        lane: CompileLane,
        group: tuple[Lowered, ...],
        reason: str,
        strategy: Strategy,
        deliver: MemoryObjectSendStream[Artifact],
    ) -> None:
        emit = self.recorder.emit
        self.state.building += 1
        try:
            built = await lane.build(group)
        except GroupFailed as failed:
            emit(GroupSplit, lane=lane.name, indices=tuple(lowered.index for lowered in group), message=failed.message)
            self.state.retry += halves(group)
            return
        finally:
            self.state.building -= 1
        good = [answer for answer in built if isinstance(answer, Artifact)]
        for failure in (answer for answer in built if isinstance(answer, Failure)):
            emit(
                BuildFailed,
                lane=lane.name,
                index=failure.index,
                kind=failure.kind,
                message=failure.message,
                detail=failure.detail,
            )
            strategy.tell(failure.index, None)
        if good:
            indices, first = tuple(a.index for a in good), good[0]
            file = first.path.rpartition("/")[2]
            emit(
                ArtifactBuilt,
                lane=lane.name,
                indices=indices,
                file=file,
                seconds=first.seconds,
                reason=reason,
                compiler=first.compiler,
                why=first.why,
            )
        for artifact in good:
            await deliver.send(artifact)

    async def _device_lane(
        self, lane: DeviceLane, strategy: Strategy, artifacts: MemoryObjectReceiveStream[Artifact]
    ) -> None:
        with artifacts:
            if not await self._start(lane):
                return
            if not self.pipeline:
                await self._compiled.wait()
            prepared = False
            async for artifact in artifacts:
                if self._stopping:
                    continue  # drained, so that no compile lane waits for ever
                if not prepared:
                    reference = await lane.prepare(artifact)
                    if reference is not None:
                        self.recorder.emit(ReferenceMeasured, lane=lane.name, device=lane.name, timing=reference)
                    prepared = True
                self.recorder.emit(BenchmarkStarted, lane=lane.name, index=artifact.index, device=lane.name)
                self._settle(lane, artifact, await lane.measure(artifact), strategy)
                if not lane.alive and not await self._start(lane):
                    return

    def _settle(self, lane: DeviceLane, artifact: Artifact, answer: Measurement | Failure, strategy: Strategy) -> None:
        emit, state = self.recorder.emit, self.recorder.state
        where = {"lane": lane.name, "index": answer.index, "device": lane.name}
        if isinstance(answer, Failure):
            emit(BenchmarkFailed, **where, kind=answer.kind, message=answer.message, detail=answer.detail)  # type: ignore[arg-type]
            if not lane.alive:
                emit(DeviceLost, lane=lane.name, device=lane.name, reason=f"{answer.kind}: {answer.message}")
            strategy.tell(answer.index, None)
            return
        before = state.best
        self.artifacts[answer.index] = artifact
        emit(
            CandidateMeasured,
            **where,  # type: ignore[arg-type]
            timing=answer.timing,
            checked=answer.checked,
            max_error=answer.max_error,
            seconds=answer.seconds,
        )
        strategy.tell(answer.index, answer.timing.latency_ms)
        if (best := state.best) is not None and best != before:
            emit(BestChanged, lane=lane.name, index=best[0], latency_ms=best[1])

    async def _start(self, lane: DeviceLane) -> bool:
        """Start a device's process; False once it is given up. Raises `DevicesLost` for the last one."""
        for attempt in range(DEVICE_STARTS):
            try:
                info = await lane.start()
            except WorkerError as error:
                final = attempt == DEVICE_STARTS - 1
                reason = f"{error} {error.detail.strip().splitlines()[-1] if error.detail.strip() else ''}".strip()
                self.recorder.emit(DeviceLost, lane=lane.name, device=lane.name, reason=reason, final=final)
                if not final:
                    continue
                self._starting -= 1
                if self._starting == 0:
                    raise DevicesLost(f"device {lane.name} does not start: {reason}; no device is left") from error
            else:
                self.recorder.emit(DeviceReady, lane=lane.name, device=info)
                return True
        return False

    async def _final(self, lanes: Sequence[DeviceLane]) -> None:
        """Time the best few in turn, with the default and the slowest beside them, while nothing compiles."""
        state = self.recorder.state
        ranked = [m.index for m in state.ranked() if m.index in self.artifacts]
        lane = next((lane for lane in lanes if lane.alive), None)
        if self.benchmark.n_final == 0 or len(ranked) < 2:
            return
        if lane is None:
            self.recorder.emit(Warned, message="no final: no device is left to time it on")
            return
        chosen = ranked[: self.benchmark.n_final] + ranked[-1:]
        if state.header is not None and state.header.default is not None:
            chosen += [i for i in ranked if state.first(i) is state.first(state.header.default)]
        chosen = list(dict.fromkeys(chosen))
        try:
            entries, reference = await lane.final([self.artifacts[i] for i in chosen], self.benchmark.n_final_rounds)
        except WorkerError as error:
            self.recorder.emit(Warned, message=f"no final: {error}; the order is that of the first timings")
            return
        entries.sort(key=lambda e: (e.timing.latency_ms, state.entries[e.index].key))
        self.recorder.emit(FinalOrdered, lane=lane.name, device=lane.name, entries=tuple(entries), reference=reference)

    async def _finish(self, spec: WorkloadSpec) -> None:
        state, winner = self.recorder.state, None
        built = state.final.entries[0].index if state.final else next((m.index for m in state.ranked()), None)
        if built in self.artifacts:
            try:
                winner = await anyio.to_thread.run_sync(self.keep, self.artifacts[built])
            except OSError as error:
                self.recorder.emit(Warned, message=f"the winner's library could not be kept: {error}")
        reason = self._stopping or self._stopping_reason
        self.recorder.emit(
            RunFinished, wall_s=round(self.recorder.elapsed_s, 4), reason=reason, kernel=winner, out_idx=spec.out_idx
        )

    async def _compile_ended(self) -> None:
        self._look()
        while not self.state.finished:
            await self._changed.wait()
            self._look()
        self._compiled.set()

    async def _keep_time(self) -> None:
        if self.budget.seconds is not None:
            await anyio.sleep(max(0.0, self.budget.seconds - self.recorder.elapsed_s))
            self.stop("budget")
        await anyio.sleep_forever()

    async def _sync_now_and_then(self) -> None:
        while True:
            await self.recorder.sync()
            await anyio.sleep(0.1)

    def _look(self) -> None:
        """Bring the scheduler's state up to date."""
        if self._stopping:
            self._drop_queues()
        self.state.waiting = self._proposals.statistics().current_buffer_used
        self.state.hold = self.backend.hold_builds()

    def _drop_queues(self) -> None:
        self.state.ready.clear()
        self.state.deferred.clear()
        self.state.retry.clear()
        while True:
            try:
                self._proposals.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                break
        self.state.waiting = 0

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error that matters in a task group's exception group, else the group itself."""
    found: list[BaseException] = []
    queue: list[BaseException] = [group]
    while queue:
        error = queue.pop()
        if isinstance(error, BaseExceptionGroup):
            queue += error.exceptions
        else:
            found.append(error)
    ours = [e for e in found if isinstance(e, AtuneError)]
    return ours[0] if ours else found[0] if len(found) == 1 else group
