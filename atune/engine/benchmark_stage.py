"""The device side of a run: starts devices, hands them candidates, repeats doubtful timings, and excludes devices."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from atune.engine.interfaces import DeviceWorker
from atune.engine.run_state import Run
from atune.errors import DevicesLost, InputsMisfit, ServerLost, WorkerError, WorkerLost, WorkloadError
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    CandidateMeasured,
    DeviceExcluded,
    DeviceLost,
    DeviceReady,
    ReferenceMeasured,
    Warned,
)
from atune.model.artifact import SERVER_LOST, Artifact, Failure, Lowered, fitting
from atune.model.candidate import Config, describe_config
from atune.model.jobs import MeasureJob, PrepareJob, StartJob
from atune.model.measurement import Measurement, Timing, fastest_ms

DEVICE_STARTS = 3
"""Number of consecutive failed starts after which the engine stops using a device."""
ENDED_BETWEEN = "the device's process ended between two candidates"
N_NEIGHBOURS = 3
"""Least number of measured neighbours that are needed to call a candidate's latency doubtful."""
DOUBTFUL_SHARE = 0.4
"""A latency below this share of the fastest neighbour's latency is doubtful."""

SPEED_TOLERANCE = 0.05
"""Largest relative difference of the reference's latency between the devices of a run. The latency differed by 2 %
between two H100s of one host, because GPUs lower their clocks at the power cap."""


class BenchmarkStage:
    """Measures artifacts on all device workers. `pipeline`: whether to measure while other candidates still compile."""

    def __init__(self, run: Run, workers: Sequence[DeviceWorker], *, pipeline: bool = True) -> None:
        self.run, self.workers, self.pipeline = run, workers, pipeline
        self.emit, self.state = run.recorder.emit, run.recorder.state
        self._again: deque[Artifact] = deque()
        """Artifacts that another device must measure, because their own device was lost or excluded."""
        self._waiting: set[anyio.CancelScope] = set()
        """Cancel scopes of the devices that wait for the next artifact of the stream."""
        self._repeated: set[int] = set()
        self._excluded: set[str] = set()
        self._given_up: set[str] = set()
        self._speeds: dict[str, float] = {}
        """The reference's latency in ms on each device in use."""
        self._fastest: dict[str, float] = {}
        """The best first timing in ms on each device."""
        here = {worker.name for worker in workers}
        for measured in self.state.ranked():  # measured by an earlier part of the run; sorted, so the first is the best
            if measured.device in here:
                self._fastest.setdefault(measured.device, measured.timing.latency_ms)

    def usable(self) -> list[DeviceWorker]:
        """Return the workers of the devices that are still in use."""
        return [worker for worker in self.workers if worker.name not in self._excluded | self._given_up]

    async def serve(self, artifacts: MemoryObjectReceiveStream[Artifact]) -> None:
        """Measure the stream's artifacts on all devices, until the stream ends."""
        async with anyio.create_task_group() as tasks:
            with artifacts:
                for worker in self.workers:
                    tasks.start_soon(self._serve, worker, artifacts.clone())
        self.run.measured.set()
        self.run.wake()

    async def _serve(self, worker: DeviceWorker, artifacts: MemoryObjectReceiveStream[Artifact]) -> None:
        with artifacts:
            if not await self.start(worker):
                return
            if not self.pipeline:
                await self.run.compiled.wait()
            if not await self._prepared(worker):
                return
            while (artifact := await self._next(worker, artifacts)) is not None:
                if self.run.stopping:
                    continue  # drain the stream; otherwise a compile worker would block on it
                self.run.measuring += 1
                try:
                    if not await self._measure(worker, artifact):
                        return
                finally:
                    self.run.measuring -= 1
                    self.run.wake()

    async def _next(self, worker: DeviceWorker, artifacts: MemoryObjectReceiveStream[Artifact]) -> Artifact | None:
        """Return an artifact that a device put back, or else the stream's next one; None if no artifact is left."""
        while worker.name not in self._excluded:
            if self._again:
                return self._again.popleft()
            try:
                with anyio.CancelScope() as waiting:
                    self._waiting.add(waiting)
                    try:
                        return await artifacts.receive()
                    finally:
                        self._waiting.discard(waiting)
            except anyio.EndOfStream:
                if self.run.measuring:  # a device that still measures may be lost, and put its candidate back
                    await self.run.changed()
                elif not self._exclude_outliers():
                    return None
        return None

    def _put_back(self, *artifacts: Artifact) -> None:
        """Queue `artifacts` for other devices. Wake devices that wait for the stream, because the stream may continue
        only after `artifacts` have outcomes."""
        self._again.extend(artifacts)
        for waiting in list(self._waiting):
            waiting.cancel()

    async def _prepared(self, worker: DeviceWorker) -> bool:
        """Make the inputs and time the reference as soon as a candidate is lowered, while the first group compiles.
        Returns False if the device was given up or excluded."""
        await self.run.found_roles.wait()
        while (lowered := self.run.lowered) is None and not self.run.compiled.is_set():
            await self.run.changed()
        if lowered is None or self.run.stopping:
            return True  # nothing will be measured
        self.run.measuring += 1
        try:
            for _ in range(DEVICE_STARTS):
                try:
                    prepared = await worker.run(PrepareJob(lowered.params, fitting(lowered.roles, self.run.roles)))
                except WorkloadError as error:
                    default = await self._default()
                    if default is not None and default.params != lowered.params:  # the first candidate may be unusual
                        lowered = default
                    elif isinstance(error, InputsMisfit) and lowered is self.run.lowered:
                        config = self.state.entry(lowered.index).config
                        raise WorkloadError(f"{describe_config(config)}: {error}") from error
                    else:
                        raise
                except WorkerLost as error:
                    self.emit(DeviceLost, worker=worker.name, device=worker.name, reason=str(error))
                    if not await self.start(worker):
                        return False
                else:
                    return self._note_speed(worker, prepared.reference)
            self._give_up(worker, "the device's process ends whenever it runs the reference")
            return False
        finally:
            self.run.measuring -= 1
            self.run.wake()

    async def _default(self) -> Lowered | None:
        """Wait for the lowered default, and return it; None if the default fails or will never be lowered."""
        index = self.state.default_index
        while index is not None and self.run.default is None:
            if self.state.outcome(index) is not None or self.run.compiled.is_set() or self.run.stopping:
                break
            await self.run.changed()
        return self.run.default

    def _note_speed(self, worker: DeviceWorker, reference: Timing | None) -> bool:
        """Record the reference's latency on a device. Returns False if the device is excluded."""
        if reference is not None:
            self.emit(ReferenceMeasured, worker=worker.name, device=worker.name, timing=reference)
            self._speeds[worker.name] = reference.latency_ms
            if len(self._speeds) == len(self.usable()):
                self._exclude_outliers()
        return worker.name not in self._excluded

    def _exclude_outliers(self) -> bool:
        """Exclude devices that are faster or slower than the others, and return whether any was excluded. The remaining
        devices measure the candidates of excluded devices again."""
        standard = statistics.median_low(self._speeds.values() or [1.0])  # of two middle devices, the faster one
        factors = {name: ms / standard for name, ms in self._speeds.items()}
        outliers = {name: factor for name, factor in factors.items() if abs(factor - 1) > SPEED_TOLERANCE}
        for name, factor in outliers.items():
            measured = [m.index for m in self.state.ranked() if m.device == name]
            reason = f"the reference takes {factor:.3f} times as long on device {name} as on the other devices"
            self.emit(DeviceExcluded, worker=name, device=name, reason=reason)
            self._excluded.add(name)
            del self._speeds[name]
            self._fastest.pop(name, None)
            again = [self.run.artifacts.pop(index) for index in measured if index in self.run.artifacts]
            self._put_back(*again)
            if len(again) < len(measured):  # an earlier part of the run built the others' libraries, now gone
                lost = f"device {name} was excluded after it timed {len(measured) - len(again)} candidates"
                self.emit(Warned, message=f"{lost} in an earlier part: resume the run again to time them elsewhere")
        self.run.wake()
        return bool(outliers)

    async def _measure(self, worker: DeviceWorker, artifact: Artifact) -> bool:
        """Measure a candidate, and repeat a doubtful measurement. Returns False if the device is lost or excluded."""
        emit, index = self.emit, artifact.index
        while True:
            if not worker.alive:
                emit(DeviceLost, worker=worker.name, device=worker.name, reason=ENDED_BETWEEN)
                if not await self.start(worker):
                    self._put_back(artifact)
                    return False
            emit(BenchmarkStarted, worker=worker.name, index=index, device=worker.name)
            best_ms = min(self._fastest.values(), default=None)
            try:
                answer = await worker.run(MeasureJob(artifact, self.run.roles, best_ms))
            except WorkerLost as error:  # the process ended while it made the inputs, or its host ended
                doubt = SERVER_LOST if isinstance(error, ServerLost) else str(error)
                answer = Failure(index, "worker_lost", str(error), error.detail, doubt)
            if isinstance(answer, Failure) and answer.doubt == SERVER_LOST:
                self._repeated.discard(index)  # an earlier repetition had another reason
            if worker.name in self._excluded and isinstance(answer, Measurement):
                doubt = f"device {worker.name} was excluded meanwhile"
            else:
                doubt = "" if index in self._repeated else self._doubt(worker, answer)
            if not doubt:
                self._settle(worker, artifact, answer)
                self._note_loss(worker, answer)
                return worker.alive or await self.start(worker)
            self._note_loss(worker, answer)
            emit(BenchmarkRepeated, worker=worker.name, index=index, device=worker.name, reason=doubt)
            if worker.name not in self._excluded and await self.start(worker):
                self._repeated.add(index)
                continue
            self._put_back(artifact)
            return False

    def _doubt(self, worker: DeviceWorker, answer: Measurement | Failure) -> str:
        """Return the reason to repeat a measurement in a fresh process; empty if `answer` is not doubtful."""
        if isinstance(answer, Failure):
            return answer.doubt
        state, latency = self.state, answer.timing.latency_ms
        best = min(self._fastest.values(), default=float("inf"))
        if latency >= best and self.run.spec.flops is self.run.spec.bytes is None:
            return ""
        device = state.devices.get(worker.name)
        floor = fastest_ms(device, self.run.spec.flops, self.run.spec.bytes) if device is not None else None
        measured = ((state.entry(m.index).config, m.timing.latency_ms) for m in state.ranked())
        return implausible(latency, state.entry(answer.index).config, measured, floor)

    def _settle(self, worker: DeviceWorker, artifact: Artifact, answer: Measurement | Failure) -> None:
        if isinstance(answer, Failure):
            self.failed(worker, answer)
            if self.state.all_differ and not self.state.doubted:
                self.run.stop("mismatched")
            return
        before, latency = self.state.best, answer.timing.latency_ms
        self.run.artifacts[answer.index] = artifact
        self._fastest[worker.name] = min(latency, self._fastest.get(worker.name, latency))
        self.emit(CandidateMeasured, worker=worker.name, device=worker.name, **msgspec.structs.asdict(answer))
        best = self.state.best
        self.run.outcomes.settled(answer.index, latency, best if best != before else None, worker.name)

    def failed(self, worker: DeviceWorker, failure: Failure) -> None:
        why = {"kind": failure.kind, "message": failure.message, "detail": failure.detail, "printed": failure.printed}
        self.emit(BenchmarkFailed, worker=worker.name, index=failure.index, device=worker.name, **why)
        self.run.outcomes.settled(failure.index)

    def _note_loss(self, worker: DeviceWorker, answer: Measurement | Failure) -> None:
        """If a device's process has ended, record its end. If `answer` is a failure, that failure is the reason."""
        if worker.alive:
            return
        reason, kill_s = ENDED_BETWEEN, 0.0
        if isinstance(answer, Failure):
            reason, kill_s = f"{answer.kind}: {answer.message}", answer.kill_s
        self.emit(DeviceLost, worker=worker.name, device=worker.name, reason=reason, kill_s=kill_s)

    async def start(self, worker: DeviceWorker) -> bool:
        """Start a device's process. Returns False if all attempts fail. Raises `DevicesLost` if no device is left."""
        for attempt in range(DEVICE_STARTS):
            began = self.run.recorder.elapsed_s
            try:
                started = await worker.run(StartJob())
            except WorkerError as error:
                reason = f"{error} {error.detail.strip().splitlines()[-1] if error.detail.strip() else ''}".strip()
                if attempt == DEVICE_STARTS - 1:
                    self._give_up(worker, reason)
                else:
                    self.emit(DeviceLost, worker=worker.name, device=worker.name, reason=reason)
            else:
                took = round(self.run.recorder.elapsed_s - began, 4)
                self.emit(DeviceReady, worker=worker.name, start_s=took, device=started.device, stream=started.stream)
                return True
        return False

    def _give_up(self, worker: DeviceWorker, reason: str) -> None:
        """Stop using a device. Raises `DevicesLost` if no other device is left."""
        self.emit(DeviceLost, worker=worker.name, device=worker.name, reason=reason, final=True)
        self._speeds.pop(worker.name, None)
        self._given_up.add(worker.name)
        if not self.usable():
            raise DevicesLost(f"device {worker.name} was given up: {reason}; no device is left")

    async def again(self, artifact: Artifact) -> bool:
        """Measure and record a candidate again, with another library. Returns False if no device is left."""
        before = self.run.artifacts.pop(artifact.index)
        self._repeated.discard(artifact.index)
        with suppress(DevicesLost):
            for worker in self.usable():
                self._again.clear()
                if not (worker.alive or await self.start(worker)):
                    continue
                await self._measure(worker, artifact)
                if not self._again:
                    return True
        self.run.artifacts[artifact.index] = before
        return False

    async def restarted(self, worker: DeviceWorker, reason: str) -> bool:
        """Try to restart a device whose process ended before or during the final. Returns whether the process runs."""
        self.emit(DeviceLost, worker=worker.name, device=worker.name, reason=reason)
        try:
            return await self.start(worker)
        except DevicesLost:
            return False


def implausible(
    latency_ms: float, config: Config, measured: Iterable[tuple[Config, float]], floor_ms: float | None
) -> str:
    """Return the reason to doubt `latency_ms`; empty if it is plausible.

    `measured`: the configurations measured so far, with their latencies in ms. Neighbours differ from `config` on one
    axis. `floor_ms`: the shortest latency that the device's peak rates allow; None if unknown.
    """
    if floor_ms is not None and latency_ms < floor_ms:
        return f"{latency_ms:.4g} ms is faster than the device's peak allows for the workload ({floor_ms:.4g} ms)"
    near = [ms for other, ms in measured if differences(config, other) == 1]
    if len(near) >= N_NEIGHBOURS and latency_ms < DOUBTFUL_SHARE * min(near):
        return f"{latency_ms:.4g} ms is far below the fastest of {len(near)} neighbours ({min(near):.4g} ms)"
    return ""


def differences(a: Config, b: Config) -> int:
    missing: Any = object()
    return sum(a.get(name, missing) != b.get(name, missing) for name in a.keys() | b.keys())
