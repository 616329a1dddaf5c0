"""Compile workers and device workers of the fakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from atune.errors import WorkerError, WorkerLost, WorkloadError
from atune.model.artifact import Artifact, Built, Compared, Elaborated, Failure, KernelParam, Lowered, Roles
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo
from atune.model.jobs import (
    HOPELESS,
    A,
    BuildJob,
    CompareJob,
    ElaborateJob,
    FinalJob,
    Finals,
    GroupFailed,
    Job,
    LowerJob,
    MeasureJob,
    Prepared,
    PrepareJob,
    RolesJob,
    Started,
    StartJob,
)
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.testing.script import FATAL, seconds_of

if TYPE_CHECKING:
    from atune.testing.machine import FakeMachine


KILLED = "scripted to be killed from outside"


class FakeCompileWorker:
    """A compile worker."""

    def __init__(self, machine: FakeMachine, name: str) -> None:
        self.machine, self.name = machine, name

    async def run(self, job: Job[A]) -> A:
        answer: Any = None
        match job:
            case LowerJob():
                answer = await self._lower(job.candidate)
            case ElaborateJob():
                answer = await self._elaborate(job.candidates)
            case RolesJob():
                answer = self._roles(job.candidate.index)
            case BuildJob():
                answer = await self._build(job)
            case CompareJob():
                answer = await self._compare(job)
        return cast(A, answer)

    def _roles(self, index: int) -> Roles | Failure:
        self.machine.examined.append(index)
        kind = self.machine.script.failure(index, "lower")
        return Roles(outputs=(0,)) if kind is None else Failure(index, kind, f"scripted to fail: {kind}")

    async def _lower(self, candidate: Candidate) -> Lowered | Failure:
        machine, script, index = self.machine, self.machine.script, candidate.index
        limit = machine.compile.compile_timeout_s
        machine.lowered.append(index)
        machine.given(candidate)
        with machine.running_as("lower"):
            seconds = math.inf if script.hangs.get(index) == "lower" else seconds_of(script.lower_s, candidate.config)
            if not await machine.take(seconds, limit):
                return Failure(index, "timeout", f"lowering ran past compile_timeout_s={limit:g}")
        if machine.killed(index, "lower"):
            return Failure(index, "worker_lost", KILLED, doubt=KILLED)
        if kind := script.failure(index, "lower"):
            return Failure(index, kind, f"scripted to fail: {kind}", "output of the fake")
        return Lowered(
            index=index,
            code_key=script.code_key(candidate.config),
            merge_key="",
            params=(KernelParam("float32", (1,)),),
            facts=script.facts(candidate.config),
            seconds=seconds,
            blob=b"",
        )

    async def _elaborate(self, candidates: Sequence[Candidate]) -> list[Elaborated | Failure] | GroupFailed:
        machine, script = self.machine, self.machine.script
        limit, answers = machine.compile.compile_timeout_s, list[Elaborated | Failure]()
        machine.elaborated.append(tuple(candidate.index for candidate in candidates))
        with machine.running_as("elaborate"):
            for index, config in ((candidate.index, candidate.config) for candidate in candidates):
                hangs = script.hangs.get(index) == "elaborate"
                in_time = await machine.take(math.inf if hangs else seconds_of(script.elaborate_s, config), limit)
                if not in_time and len(candidates) > 1:
                    return GroupFailed("elaborating ran past the deadline")
                if not in_time:
                    answers.append(Failure(index, "timeout", f"elaborating ran past compile_timeout_s={limit:g}"))
                elif kind := script.failure(index, "elaborate"):
                    answers.append(Failure(index, kind, f"scripted to fail: {kind}", "output of the fake"))
                else:
                    answers.append(Elaborated(index, script.facts(config)))
        return answers

    async def _build(self, job: BuildJob) -> list[Built] | GroupFailed:
        machine, script, group = self.machine, self.machine.script, job.group
        compiler, state = ("cicc", "fake") if script.cicc and not job.plain else ("", "")
        limit = job.limit_s or machine.compile.compile_timeout_s
        indices = tuple(member.index for member in group)
        machine.groups.append(indices)
        seconds = script.library_s + sum(seconds_of(script.compile_s, machine.config_of(i)) for i in indices)
        kinds = [kind for i in indices if (kind := script.failure(i, "build"))]
        hangs = any(script.hangs.get(i) == "build" for i in indices)
        with machine.running_as("build"):
            if not await machine.take(math.inf if hangs else seconds, limit):
                kinds = ["timeout" if job.limit_s is None else "hopeless"]
        if any(machine.killed(i, "build") for i in indices):
            if len(group) > 1:
                return GroupFailed(KILLED, KILLED)
            return [Failure(indices[0], "worker_lost", KILLED, doubt=KILLED)]
        if kinds:
            past = {
                "timeout": f"compiling ran past compile_timeout_s={limit:g}",
                "hopeless": HOPELESS.format(limit_s=limit),
            }
            message = past.get(kinds[0], f"scripted to fail: {kinds[0]}")
            if len(group) > 1:
                return GroupFailed(message)
            return [Failure(indices[0], kinds[0], message, "output of the fake")]
        path = machine.new_library(group)
        return [
            Artifact(m.index, path, symbol_of(m.index), m.params, "c", seconds, compiler=compiler, state=state)
            for m in group
        ]

    async def _compare(self, job: CompareJob) -> Compared | Failure:
        machine, script, index = self.machine, self.machine.script, job.candidate.index
        machine.compared.append(index)
        lost = len(machine.compared) <= script.compare_losses
        with machine.running_as("compare"):
            await machine.take(script.compare_s)
        if lost:
            raise WorkerLost(f"{self.name} is scripted to be lost while it compares")
        if script.compare_fails:
            return Failure(index, "compile", "nvcc is scripted to fail")
        return Compared(index, "the device code" if script.differs else "")


class FakeDeviceWorker:
    """A device's process. `speed` divides the time of measuring."""

    def __init__(self, machine: FakeMachine, info: DeviceInfo, speed: float) -> None:
        self.machine, self.info, self.speed = machine, info, speed
        self.name = info.id
        self.alive = False
        self._used = False
        """Whether a candidate has run in this process."""

    async def run(self, job: Job[A]) -> A:
        answer: Any
        match job:
            case StartJob():
                answer = Started(await self.start())
            case PrepareJob():
                answer = Prepared(await self._prepare())
            case MeasureJob():
                answer = await self._measure(job.artifact, job.best_ms)
            case FinalJob():
                answer = await self._final(job)
        return cast(A, answer)

    async def start(self) -> DeviceInfo:
        """Start the process. Raises `WorkerError` if the script says so."""
        self.alive = self._used = False
        machine = self.machine
        machine.starts[self.name] += 1
        with machine.running_as("start"):
            await machine.take(machine.script.start_s)
        if machine.starts[self.name] <= machine.script.start_failures.get(self.name, 0):
            raise WorkerError(f"{self.name} is scripted not to start", "output of the fake driver")
        self.alive = True
        return self.info

    async def _prepare(self) -> Timing | None:
        self._check_alive()
        if self.machine.script.prepare_error:
            raise WorkloadError(self.machine.script.prepare_error)
        with self.machine.running_as("prepare"):
            await self.machine.take(0.1 / self.speed)
        reference = self.machine.script.reference_ms
        slowdown = self.machine.script.slowdown.get(self.name, 1.0)
        return None if reference is None else _timing(reference * slowdown, self.machine.benchmark.n_repeat)

    async def _measure(self, artifact: Artifact, best_ms: float | None) -> Measurement | Failure:
        self._check_alive()
        machine, script = self.machine, self.machine.script
        limit = machine.benchmark.benchmark_timeout_s
        index = self._loaded(artifact)
        config = machine.config_of(index)
        machine.measured[self.name].append(index)
        machine.best_known.append(best_ms)
        before = machine.begun[index]
        machine.begun[index] += 1
        seconds = seconds_of(script.measure_s, config) / self.speed
        kind = script.failure(index, "measure")
        if script.cicc and artifact.plain:
            kind = script.plain_fails.get(index)
        message = f"scripted to fail: {kind}"
        with machine.running_as("measure"):
            if not await machine.take(math.inf if script.hangs.get(index) == "measure" else seconds, limit):
                kind, message = "timeout", f"ran past benchmark_timeout_s={limit:g}; killed"
        used, self._used = self._used, True
        doubt = "" if before >= script.doubts.get(index, 0) else "scripted to be another's fault"
        if used and kind is None and index in script.spoilt:
            kind, doubt = script.spoilt[index], "scripted to be spoilt by another"
        elif doubt and kind is None:
            kind = "worker_lost"
        elif kind is None and index in script.dies_after and before < script.dies_after[index]:
            self.alive = False
        if kind is not None:
            self.alive = kind not in FATAL
            return Failure(artifact.index, kind, message, "output of the fake", doubt)
        checked = script.reference_ms is not None and machine.benchmark.check
        early = script.first_ms.get(index) if not before else None
        latency = script.latency_of(config, plain=artifact.plain, final=False) if early is None else early
        timing = _timing(latency * script.slowdown.get(self.name, 1.0), machine.benchmark.n_repeat)
        return Measurement(artifact.index, timing, checked, 0.0 if checked else None, seconds)

    async def _final(self, job: FinalJob) -> Finals:
        artifacts, rounds = job.artifacts, job.rounds
        self._check_alive()
        self._used = True
        machine, script = self.machine, self.machine.script
        if len(machine.finals) < script.final_losses:
            machine.finals.append(tuple(self._loaded(artifact) for artifact in artifacts))
            self.alive = False
            raise WorkerLost(f"device {self.name} is scripted to be lost in the final")
        indices = tuple(self._loaded(artifact) for artifact in artifacts)
        machine.finals.append(indices)
        with machine.running_as("final"):
            await machine.take(0.1 * len(indices) / self.speed)
        latencies = [
            script.latency_of(machine.config_of(self._loaded(a)), plain=a.plain, final=True) for a in artifacts
        ]
        noise = script.final_noise
        entries, failures = [], []
        for i, ms in zip(indices, latencies, strict=True):
            entries.append(FinalEntry(i, Timing.of([1e3 * ms * noise(i) for _ in range(rounds)], "perf_counter")))
            if kind := script.final_fails.get(i):
                failures.append(Failure(i, kind, f"scripted to fail in the final: {kind}"))
                self.alive &= kind not in FATAL
        reference = script.reference_ms
        timing = None if reference is None else _timing(reference, rounds)
        return Finals(tuple(entries), timing, tuple(failures))

    def _loaded(self, artifact: Artifact) -> int:
        library: dict[str, int] = msgspec.msgpack.decode(Path(artifact.path).read_bytes())
        return library[artifact.symbol]

    def _check_alive(self) -> None:
        if not self.alive:
            raise WorkerLost(f"device {self.name} was not started, or was lost")


def symbol_of(index: int) -> str:
    """Return the symbol of candidate `index` in a fake library."""
    return f"fake_kernel_{index}"


def _timing(latency_ms: float, samples: int) -> Timing:
    return Timing.of([latency_ms * 1e3] * samples, "perf_counter")
