"""The engine: one task group that proposes, compiles, measures and records, over any `Backend`.

    strategy ─▶ proposals ─▶ compile lanes ─▶ artifacts ─▶ device lanes ─▶ final

Proposals and artifacts are bounded memory object streams; what a free compile lane does next is the scheduler's
decision. The engine itself never compiles, loads or runs anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from atune.artifact import Artifact, Failure, Lowered
from atune.backend import Backend, CompileLane, DeviceLane, GroupFailed
from atune.candidate import Candidate, config_key
from atune.device import DeviceInfo, DeviceLimits, fastest_ms
from atune.errors import AtuneError, DevicesLost, WorkerError, WorkerLost
from atune.events import (
    SCHEMA,
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    BestChanged,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    DeviceExcluded,
    DeviceLost,
    DeviceReady,
    FinalOrdered,
    GroupSplit,
    JournalRepaired,
    ReferenceMeasured,
    RunFinished,
    RunResumed,
    RunStarted,
    Warned,
)
from atune.measurement import FinalEntry, Measurement, Timing
from atune.plausible import implausible
from atune.recorder import Recorder
from atune.resumption import Plan, finished, plan_new, plan_rest, space_hash
from atune.scheduler import CompileState, Lower, halves
from atune.screen import screen
from atune.settings import BenchmarkSettings, Budget, CompileSettings
from atune.standing import final_order, speed_outliers, unsettled
from atune.state import State
from atune.strategy import Strategy
from atune.workload import WorkloadSpec

PROPOSALS_PER_LANE = 2
"""Proposed candidates that wait for each compile lane."""
ARTIFACTS_PER_DEVICE = 64
"""Artifacts that wait for each device before the compile lanes have to."""
DEVICE_STARTS = 3
"""Times that starting a device's process may fail in a row before the device is given up."""

BETWEEN = "its process ended between two candidates"
NO_FINAL = "no final: no device is left to time it on"
FINAL_S = 5.0
"""Seconds after which the final takes no further look at an order that is not settled."""

Keep = Callable[[Artifact], Artifact]
Find = Callable[[Artifact], Artifact | None]


@dataclass(frozen=True)
class _Outcome:
    """A candidate's outcome that is recorded and not yet known to be on the disk."""

    index: int
    latency_ms: float | None
    best: tuple[int, float] | None
    lane: str


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
        find: Find = lambda artifact: None,
        accept: Sequence[str] = (),
    ) -> None:
        self.backend, self.recorder = backend, recorder
        self.compile, self.benchmark = compile, benchmark
        self.strategy_name, self.seed = strategy, seed
        self.budget, self.pipeline, self.keep = budget or Budget(), pipeline, keep
        self.find, self.accept = find, accept
        self.artifacts: dict[int, Artifact] = {}
        """Libraries of the candidates that were measured: the final's."""
        self._codes: dict[str, int] = {}
        self._unsynced: deque[_Outcome] = deque()
        self._to_sync = anyio.Event()
        self._acknowledging = anyio.Lock()
        self._changed = anyio.Event()
        self._compiled = anyio.Event()
        self._stopping = ""
        self._limits = DeviceLimits()
        self._in_use = 0
        """Devices that are neither given up nor left out."""
        self._measuring = 0
        self._again: deque[Artifact] = deque()
        """What a device could not finish, or what it measured before it was left out."""
        self._repeated: set[int] = set()
        self._excluded: set[str] = set()
        self._given_up: set[str] = set()
        self._speeds: dict[str, float] = {}
        """The reference's latency by device, ms, of those in use."""
        self._fastest: dict[str, float] = {}
        """The best first timing by device, ms."""
        self._spec: WorkloadSpec
        self.state: CompileState
        self._strategy: Strategy

    def stop(self, reason: str = "stopped") -> None:
        """Propose and start nothing more; what is under way ends, then comes the final."""
        self._stopping = self._stopping or reason
        self._wake()

    async def run(self) -> None:
        """Tune. Cancellation kills every process; what was recorded stays.

        Raises `UsageError` for the caller's mistakes, `DevicesLost` when no device is left, and `JournalError`.
        """
        async with self.backend.open():
            spec, plan = await self._describe()
            if plan is None:
                return
            self._strategy = plan.strategy
            compile_lanes, device_lanes = self.backend.compile_lanes(plan.proposable), self.backend.device_lanes()
            self.backend.on_change(self._wake)
            for message in self.backend.remarks():
                self.recorder.emit(Warned, message=message)
            self.state = CompileState(
                lanes=len(compile_lanes),
                devices=len(device_lanes),
                total=len(plan.redo) + plan.proposable,
                group_size=self.compile.group_size,
                pipeline=self.pipeline,
                in_a_row=self.backend.in_a_row,
            )
            propose, self._proposals = anyio.create_memory_object_stream[Candidate](
                PROPOSALS_PER_LANE * len(compile_lanes)
            )
            depth = ARTIFACTS_PER_DEVICE * len(device_lanes) if self.pipeline else float("inf")
            deliver, artifacts = anyio.create_memory_object_stream[Artifact](depth)
            self._in_use, self._spec = len(device_lanes), spec
            async with anyio.create_task_group() as syncing:
                syncing.start_soon(self._sync_outcomes)
                async with anyio.create_task_group() as timed:
                    timed.start_soon(self._keep_time)
                    async with anyio.create_task_group() as tasks, self._proposals, deliver, artifacts:
                        tasks.start_soon(self._propose, plan, propose)
                        for compile_lane in compile_lanes:
                            tasks.start_soon(self._compile_lane, compile_lane, deliver.clone())
                        for device_lane in device_lanes:
                            tasks.start_soon(self._device_lane, device_lane, artifacts.clone())
                        deliver.close()
                        artifacts.close()
                        await self._compile_ended()
                    timed.cancel_scope.cancel()
                await self._acknowledge()
                await self._final(device_lanes, compile_lanes, plan)
                syncing.cancel_scope.cancel()
            await self._finish(spec)
        await self.recorder.sync()

    async def _describe(self) -> tuple[WorkloadSpec, Plan | None]:
        """Learn what to tune and on what, and record the start; no plan where nothing is left of a run before."""
        specs: list[WorkloadSpec] = []

        async def describe() -> None:
            specs.append(await self.backend.describe())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(describe)
            target, devices = await self.backend.discover()
        spec = specs[0]
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
        header: dict[str, Any] = {
            "schema": SCHEMA,
            "workload": spec.name,
            "origin": spec.origin,
            "fingerprint": spec.fingerprint,
            "space": space_hash(config_key(config) for config in spec.configs),
            "total": len(spec.configs),
            "default": spec.default,
            "arguments": spec.arguments,
            "target": target,
            "devices": tuple(d.id for d in devices),
            "strategy": self.strategy_name,
            "settings": settings,
            "versions": self.backend.versions(),
        }
        state = self.recorder.state
        if state.header is None:
            plan = plan_new(spec, self.strategy_name, self.seed, self.budget)
            self.recorder.emit(RunStarted, **header)
        else:
            now = RunStarted(seq=0, time=0, mono=0, **header)
            plan = plan_rest(state, now, devices, spec, self.budget, self.accept)
            if finished(state, self.budget) and plan.empty:
                return spec, None
            self._resume(state, plan, header["versions"], devices)
        self._to_sync.set()
        return spec, plan

    def _resume(self, state: State, plan: Plan, versions: dict[str, str], devices: Sequence[DeviceInfo]) -> None:
        """Record that a further part begins, and settle what needs no work."""
        emit, journal = self.recorder.emit, self.recorder.journal
        if journal is not None and journal.torn_bytes:
            emit(JournalRepaired, cut_bytes=journal.torn_bytes)
        part = state.resumed.part + 1 if state.resumed else 1
        total = plan.total if plan.total != state.total else None
        emit(RunResumed, part=part, versions=versions, total=total, accepted=plan.accepted)
        for index, device in plan.suspects.items():
            message = "suspect: the whole program died twice while this candidate was being measured"
            emit(BenchmarkFailed, index=index, device=device, kind="suspect", message=message)
        for index in plan.gone:
            emit(CandidatePruned, index=index, reason="the space does not hold it any more")
        self._codes.update(plan.codes)
        here = {device.id for device in devices}
        for measured in state.ranked():  # the best first
            if measured.device in here:
                self._fastest.setdefault(measured.device, measured.timing.latency_ms)

    async def _propose(self, plan: Plan, propose: MemoryObjectSendStream[Candidate]) -> None:
        proposed = 0
        with propose:
            for candidate in plan.redo:
                await propose.send(candidate)
                self._wake()
            while proposed < plan.proposable and not self._stopping:
                index = plan.strategy.ask()
                if index is None:
                    break
                if (candidate_or_none := plan.candidates.get(index)) is None:
                    continue  # the space does not hold it any more
                candidate = candidate_or_none
                proposed += 1
                self.recorder.emit(CandidateProposed, index=index, key=candidate.key, config=candidate.config)
                await propose.send(candidate)
                self._wake()
        self.state.proposing = False
        if self.budget.candidates is not None and self.budget.candidates < len(plan.candidates):
            self._stopping_reason = "budget"
        self._wake()

    _stopping_reason = "exhausted"

    async def _compile_lane(self, lane: CompileLane, deliver: MemoryObjectSendStream[Artifact]) -> None:
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
                        taken = [self._proposals.receive_nowait() for _ in range(job.count)]
                        await self._lower(lane, taken, deliver)
                    else:
                        await self._build(lane, job.group, job.reason, deliver)
                finally:
                    self.state.busy -= 1
                    self._wake()

    async def _lower(
        self, lane: CompileLane, candidates: Sequence[Candidate], deliver: MemoryObjectSendStream[Artifact]
    ) -> None:
        left = len(candidates)
        self.state.lowering += left
        try:
            for candidate in candidates:
                if not self._stopping:
                    await self._lower_one(lane, candidate, deliver)
                left -= 1
                self.state.lowering -= 1
                self.state.seen += 1
                self._wake()
        finally:
            self.state.lowering -= left
            self.state.seen += left

    async def _lower_one(
        self,
        lane: CompileLane,
        candidate: Candidate,
        deliver: MemoryObjectSendStream[Artifact],
    ) -> None:
        answer = await lane.lower(candidate)
        emit = self.recorder.emit
        if isinstance(answer, Failure):
            self._build_failed(lane, answer)
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
            self._settled(candidate.index)
        elif verdict == "prune":
            emit(CandidatePruned, lane=lane.name, index=answer.index, reason=why)
            self._settled(candidate.index)
        elif (known := await self._find(lane, answer)) is not None:
            await deliver.send(known)
        else:
            (self.state.deferred if verdict == "defer" else self.state.ready).append(answer)

    def _build_failed(self, lane: CompileLane, failure: Failure) -> None:
        """Record a candidate that did not make it through lowering or building."""
        self.recorder.emit(
            BuildFailed,
            lane=lane.name,
            index=failure.index,
            kind=failure.kind,
            message=failure.message,
            detail=failure.detail,
        )
        self._settled(failure.index)

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
            self._build_failed(lane, failure)
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
                words=first.words,
            )
        for artifact in good:
            await deliver.send(artifact)

    async def _device_lane(self, lane: DeviceLane, artifacts: MemoryObjectReceiveStream[Artifact]) -> None:
        with artifacts:
            if not await self._start(lane):
                return
            if not self.pipeline:
                await self._compiled.wait()
            prepared = False
            while (artifact := await self._next(lane, artifacts)) is not None:
                if self._stopping:
                    continue  # drained, so that no compile lane waits for ever
                self._measuring += 1
                try:
                    if not prepared and not await self._prepare(lane, artifact):
                        self._again.append(artifact)
                        return
                    prepared = True
                    if not await self._measure(lane, artifact):
                        return
                finally:
                    self._measuring -= 1
                    self._wake()

    async def _next(self, lane: DeviceLane, artifacts: MemoryObjectReceiveStream[Artifact]) -> Artifact | None:
        """Return what to measure next: what another device left, else the stream's next; None at the end of all."""
        while lane.name not in self._excluded:
            if self._again:
                return self._again.popleft()
            try:
                return await artifacts.receive()
            except anyio.EndOfStream:
                if self._measuring:  # that device may yet be lost, and leave its candidate
                    await self._changed.wait()
                elif not self._leave_out():
                    return None
        return None

    async def _prepare(self, lane: DeviceLane, artifact: Artifact) -> bool:
        """Have the inputs made and the reference timed; False once the device is given up, or left out."""
        for _ in range(DEVICE_STARTS):
            try:
                reference = await lane.prepare(artifact)
            except WorkerLost as error:
                self.recorder.emit(DeviceLost, lane=lane.name, device=lane.name, reason=str(error))
                if not await self._start(lane):
                    return False
                continue
            if reference is not None:
                self.recorder.emit(ReferenceMeasured, lane=lane.name, device=lane.name, timing=reference)
                self._speeds[lane.name] = reference.latency_ms
                if len(self._speeds) == self._in_use:
                    self._leave_out()
            return lane.name not in self._excluded
        self._give_up(lane, "its process is lost whenever the reference runs")
        return False

    def _leave_out(self) -> bool:
        """Leave out devices that are not as fast as the others; what they measured is measured again."""
        outliers = speed_outliers(self._speeds)
        for name, factor in outliers.items():
            measured = [m.index for m in self.recorder.state.ranked() if m.device == name]
            reason = f"the reference takes {factor:.3f} times as long on device {name} as on the others"
            self.recorder.emit(DeviceExcluded, lane=name, device=name, reason=reason)
            self._excluded.add(name)
            del self._speeds[name]
            self._fastest.pop(name, None)
            again = [self.artifacts.pop(index) for index in measured if index in self.artifacts]
            self._again.extend(again)
            if len(again) < len(measured):  # this part of the run has no libraries of theirs
                message = f"{len(measured) - len(again)} candidates that device {name} measured in an earlier part"
                self.recorder.emit(Warned, message=f"{message} are measured again when the run is resumed once more")
            self._in_use -= 1
        self._wake()
        return bool(outliers)

    async def _measure(self, lane: DeviceLane, artifact: Artifact) -> bool:
        """Measure one candidate, and once more where there is a doubt; False once the device is not to be used."""
        emit, index = self.recorder.emit, artifact.index
        while True:
            if not lane.alive:
                emit(DeviceLost, lane=lane.name, device=lane.name, reason=BETWEEN)
                if not await self._start(lane):
                    self._again.append(artifact)
                    return False
            emit(BenchmarkStarted, lane=lane.name, index=index, device=lane.name)
            try:
                answer = await lane.measure(artifact, min(self._fastest.values(), default=None))
            except WorkerLost as error:  # while its inputs were made
                answer = Failure(index, "worker_lost", str(error), error.detail, "its inputs were being made")
            if lane.name in self._excluded and isinstance(answer, Measurement):
                doubt = f"device {lane.name} was left out meanwhile"
            else:
                doubt = "" if index in self._repeated else self._doubt(lane, answer)
            if not doubt:
                self._settle(lane, artifact, answer)
                if isinstance(answer, Measurement) and not lane.alive:
                    emit(DeviceLost, lane=lane.name, device=lane.name, reason=BETWEEN)
                return lane.alive or await self._start(lane)
            if isinstance(answer, Failure) and not lane.alive:
                reason = f"{answer.kind}: {answer.message}"
                emit(DeviceLost, lane=lane.name, device=lane.name, reason=reason, kill_s=answer.kill_s)
            emit(BenchmarkRepeated, lane=lane.name, index=index, device=lane.name, reason=doubt)
            if lane.name not in self._excluded:
                self._repeated.add(index)
                if await self._start(lane):
                    continue
            self._again.append(artifact)
            return False

    def _doubt(self, lane: DeviceLane, answer: Measurement | Failure) -> str:
        """Say why `answer` should be had once more, from a fresh process; empty where it counts."""
        if isinstance(answer, Failure):
            return answer.doubt
        state, latency = self.recorder.state, answer.timing.latency_ms
        best = min(self._fastest.values(), default=float("inf"))
        if latency >= best and self._spec.flops is self._spec.bytes is None:
            return ""
        device = state.devices.get(lane.name)
        floor = fastest_ms(device.name, self._spec.flops, self._spec.bytes) if device is not None else None
        measured = ((state.entry(m.index).config, m.timing.latency_ms) for m in state.ranked())
        return implausible(latency, state.entry(answer.index).config, measured, floor)

    def _settle(self, lane: DeviceLane, artifact: Artifact, answer: Measurement | Failure) -> None:
        emit, state = self.recorder.emit, self.recorder.state
        where = {"lane": lane.name, "index": answer.index, "device": lane.name}
        if isinstance(answer, Failure):
            emit(BenchmarkFailed, **where, kind=answer.kind, message=answer.message, detail=answer.detail)  # type: ignore[arg-type]
            if not lane.alive:
                reason = f"{answer.kind}: {answer.message}"
                emit(DeviceLost, lane=lane.name, device=lane.name, reason=reason, kill_s=answer.kill_s)
            self._settled(answer.index)
            return
        before, latency = state.best, answer.timing.latency_ms
        self.artifacts[answer.index] = artifact
        self._fastest[lane.name] = min(latency, self._fastest.get(lane.name, latency))
        emit(
            CandidateMeasured,
            **where,  # type: ignore[arg-type]
            timing=answer.timing,
            checked=answer.checked,
            max_error=answer.max_error,
            seconds=answer.seconds,
            writes=answer.writes,
        )
        best = state.best
        self._settled(answer.index, latency, best if best != before else None, lane.name)

    def _settled(
        self, index: int, latency_ms: float | None = None, best: tuple[int, float] | None = None, lane: str = "engine"
    ) -> None:
        """Acknowledge a candidate's outcome as soon as it is on the disk; the lane goes on meanwhile."""
        self._unsynced.append(_Outcome(index, latency_ms, best, lane))
        if self.recorder.journal is None:
            self._tell(1)
        else:
            self._to_sync.set()

    def _tell(self, count: int) -> None:
        for _ in range(count):
            outcome = self._unsynced.popleft()
            self._strategy.tell(outcome.index, outcome.latency_ms)
            if outcome.best is not None:
                self.recorder.emit(BestChanged, lane=outcome.lane, index=outcome.best[0], latency_ms=outcome.best[1])

    async def _sync_outcomes(self) -> None:
        """Sync again and again while there is something new: outcomes that come during one sync share the next."""
        while True:
            await self._to_sync.wait()
            self._to_sync = anyio.Event()
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Sync, then tell the strategy and everyone about the outcomes that were recorded before."""
        async with self._acknowledging:
            count = len(self._unsynced)
            await self.recorder.sync()
            self._tell(count)

    async def _start(self, lane: DeviceLane) -> bool:
        """Start a device's process; False once it is given up. Raises `DevicesLost` for the last one."""
        for attempt in range(DEVICE_STARTS):
            began = self.recorder.elapsed_s
            try:
                info = await lane.start()
            except WorkerError as error:
                reason = f"{error} {error.detail.strip().splitlines()[-1] if error.detail.strip() else ''}".strip()
                if attempt == DEVICE_STARTS - 1:
                    self._give_up(lane, reason)
                else:
                    self.recorder.emit(DeviceLost, lane=lane.name, device=lane.name, reason=reason)
            else:
                took = round(self.recorder.elapsed_s - began, 4)
                self.recorder.emit(DeviceReady, lane=lane.name, device=info, start_s=took, standby=lane.took_over)
                return True
        return False

    def _give_up(self, lane: DeviceLane, reason: str) -> None:
        """Use a device no more. Raises `DevicesLost` for the last one."""
        self.recorder.emit(DeviceLost, lane=lane.name, device=lane.name, reason=reason, final=True)
        self._speeds.pop(lane.name, None)
        self._given_up.add(lane.name)
        if lane.name not in self._excluded:
            self._in_use -= 1
        if self._in_use == 0:
            raise DevicesLost(f"device {lane.name} is given up: {reason}; no device is left")

    async def _final(self, lanes: Sequence[DeviceLane], compile_lanes: Sequence[CompileLane], plan: Plan) -> None:
        """Time the best few in turn, with the default and the slowest beside them, while nothing compiles."""
        state = self.recorder.state
        ranked = [m.index for m in state.ranked()]
        if self.benchmark.n_final == 0 or len(ranked) < 2 or state.final is not None:
            await self._recover(
                ranked[:1] if state.final is None else [state.final.entries[0].index], compile_lanes, plan
            )
            return
        usable = [lane for lane in lanes if lane.name not in self._excluded | self._given_up]
        if not usable:
            self.recorder.emit(Warned, message=NO_FINAL)
            return
        contenders = ranked[: self.benchmark.n_final]
        chosen = contenders + ranked[-1:]
        if state.header is not None and state.header.default is not None:
            chosen += [i for i in ranked if state.first(i) is state.first(state.header.default)]
        chosen = list(dict.fromkeys(chosen))
        await self._recover(chosen, compile_lanes, plan)
        chosen = [i for i in chosen if i in self.artifacts]
        contenders = [i for i in contenders if i in self.artifacts]
        if len(chosen) < 2 or not contenders:
            return
        lane = next((lane for lane in usable if lane.alive), usable[0])
        if not (lane.alive or await self._restarted(lane, BETWEEN)):
            self.recorder.emit(Warned, message=NO_FINAL)
            return
        for attempt in range(2):
            try:
                entries, reference = await self._rounds(lane, chosen, contenders)
                break
            except WorkerError as error:
                if attempt or not await self._restarted(lane, str(error)):
                    self.recorder.emit(Warned, message=f"no final: {error}; the order is that of the first timings")
                    return
        self.recorder.emit(FinalOrdered, lane=lane.name, device=lane.name, entries=tuple(entries), reference=reference)

    async def _restarted(self, lane: DeviceLane, reason: str) -> bool:
        """Try to get a device back whose process ended before or in the final."""
        self.recorder.emit(DeviceLost, lane=lane.name, device=lane.name, reason=reason)
        try:
            return await self._start(lane)
        except DevicesLost:
            return False

    async def _rounds(
        self, lane: DeviceLane, chosen: Sequence[int], contenders: Sequence[int]
    ) -> tuple[list[FinalEntry], Timing | None]:
        """Time all in turn, then those whose order is open, until it is settled or a limit is reached."""
        state, rounds = self.recorder.state, self.benchmark.n_final_rounds
        looks = max(1, self.benchmark.n_final_limit // rounds)
        began, timings = self.recorder.elapsed_s, dict[int, Timing]()
        found, reference = await lane.final([self.artifacts[i] for i in chosen], rounds)
        timings.update((e.index, e.timing) for e in found)
        for _ in range(looks - 1):
            playing = unsettled(timings, contenders, looks)
            if not playing or self.recorder.elapsed_s - began > FINAL_S:
                break
            found, _ = await lane.final([self.artifacts[i] for i in playing], rounds, with_reference=False)
            timings.update((e.index, timings[e.index].and_more(e.timing)) for e in found)
        return final_order(timings, contenders, {i: state.entries[i].key for i in timings}, looks), reference

    async def _recover(self, wanted: Sequence[int], lanes: Sequence[CompileLane], plan: Plan) -> None:
        """Get the libraries of candidates that an earlier part measured: from the store, else by compiling again."""
        state = self.recorder.state
        missing = [index for index in wanted if index not in self.artifacts]
        if missing and state.kept is not None and state.kept.index in missing:
            found = await anyio.to_thread.run_sync(self.find, state.kept)
            if found is not None:
                self.artifacts[found.index] = found
                missing.remove(found.index)

        async def rebuild(lane: CompileLane) -> None:
            while missing:
                index = missing.pop(0)
                failed = await self._rebuild(lane, plan.candidates[index])
                if failed:
                    message = f"candidate {index} was measured before and could not be compiled again ({failed})"
                    self.recorder.emit(Warned, lane=lane.name, message=f"{message}: it is not in the final")

        async with anyio.create_task_group() as tasks:
            for lane in lanes[: len(missing)]:
                tasks.start_soon(rebuild, lane)

    async def _rebuild(self, lane: CompileLane, candidate: Candidate) -> str:
        """Compile one candidate again; return why not, where that fails."""
        lowered = await lane.lower(candidate)
        if isinstance(lowered, Failure):
            return lowered.message
        if lowered.code_key != self.recorder.state.entries[candidate.index].code_key:
            return "it has other code now"
        if (known := await self._find(lane, lowered)) is not None:
            self.artifacts[candidate.index] = known
            return ""
        [built] = await lane.build([lowered])
        if isinstance(built, Failure):
            return built.message
        self.artifacts[candidate.index] = built
        where = {"indices": (candidate.index,), "file": built.path.rpartition("/")[2], "seconds": built.seconds}
        self.recorder.emit(ArtifactBuilt, lane=lane.name, **where, reason="measured before: again for the final")
        return ""

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
            RunFinished, wall_s=round(self.recorder.part_s, 4), reason=reason, kernel=winner, out_idx=spec.out_idx
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

    def _look(self) -> None:
        """Bring the scheduler's state up to date."""
        if self._stopping:
            self._drop_queues()
        self.state.waiting = self._proposals.statistics().current_buffer_used
        self.state.hold, self.state.hold_first = self.backend.hold_builds()
        self.state.resting = self.backend.resting(self._measuring)

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
