"""Scripts for the fakes, by configuration or by candidate index, and the workers that follow them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from atune.errors import WorkerError, WorkerLost, WorkloadError
from atune.model.artifact import (
    Artifact,
    Built,
    Compared,
    Elaborated,
    Failure,
    FailureKind,
    KernelParam,
    Lowered,
    Roles,
    StaticFacts,
)
from atune.model.candidate import Candidate, Config, config_key
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

if TYPE_CHECKING:
    from atune.testing.machine import FakeMachine

Stage = Literal["elaborate", "lower", "build", "measure"]
Seconds = float | Callable[[Config], float]

STAGE_OF: dict[FailureKind, Stage] = {"lower": "lower", "codegen": "build", "compile": "build", "crash": "build"}
"""Default stage of a kind of failure. The stage of every other kind is measuring."""
FATAL: tuple[FailureKind, ...] = ("fault", "out_of_bounds", "worker_lost", "timeout")
"""Failures that end the device's process."""


@dataclass(frozen=True)
class Script:
    """Behaviour of the fakes, by configuration or by candidate index. Times are in virtual seconds.

    `latency_ms` is the kernel's latency, and `final_ms` that in the final (the same by default). `reference_ms` is the
    reference's latency (None: no reference). `lower_s`, `measure_s` and `start_s` are the times of lowering, measuring
    and starting a device's process. A library takes `library_s`, and `compile_s` for each member.

    `fails` maps a candidate to the kind of its failure, which determines the stage (`STAGE_OF`), or to (stage, kind).
    A candidate that fails in ``build`` fails every group that contains it. `hangs` maps a candidate to the stage that
    never ends for it; the deadlines of the settings end it. Failures of a kind in `FATAL` end the device's process.

    Configurations with an equal `code_key` are duplicates. `start_failures` is the number of times that a device, by
    its name, fails to start at first (`math.inf`: always). `prepare_error` makes the user's inputs or reference fail.
    Lowering returns `facts` of a candidate, and so does elaborating, which takes `elaborate_s`.

    `kills` maps a candidate to a stage, ``lower`` or ``build``, and the number of times that its compile worker is
    killed from outside in it. `doubts` is the number of times that a candidate's device is killed from outside during
    its measurement. `dies_after` is the number of times that the device dies after it.

    `spoilt` maps a candidate to its failure in a process that ran others before, and only there. `final_fails` maps it
    to its failure in the final, after its timing. `first_ms` is the latency of only the first measurement. `slowdown`
    is the factor by which kernels and the reference run slower on a device, by its name. `final_noise` multiplies each
    sample of a candidate in the final. The first `final_losses` calls of the final lose the device.

    `cicc` compiles every library by cicc, in a state that no run has compared.
    Comparing it takes `compare_s`, fails if `compare_fails`, and loses the worker in its first `compare_losses` calls.
    If `differs`, cicc's code differs: libraries by nvcc have the latency `plain_ms` (by default the candidate's), and
    measuring them fails for those in `plain_fails`.
    """

    latency_ms: Callable[[Config], float] = lambda config: 1.0
    final_ms: Callable[[Config], float] | None = None
    reference_ms: float | None = 2.0
    elaborate_s: Seconds = 0.02
    lower_s: Seconds = 0.1
    library_s: float = 1.0
    compile_s: Seconds = 0.5
    measure_s: Seconds = 0.2
    start_s: float = 1.0
    fails: Mapping[int, FailureKind | tuple[Stage, FailureKind]] = field(default_factory=dict)
    hangs: Mapping[int, Stage] = field(default_factory=dict)
    facts: Callable[[Config], StaticFacts] = lambda config: StaticFacts()
    code_key: Callable[[Config], str] = config_key
    start_failures: Mapping[str, float] = field(default_factory=dict)
    kills: Mapping[int, tuple[Stage, int]] = field(default_factory=dict)
    doubts: Mapping[int, int] = field(default_factory=dict)
    dies_after: Mapping[int, int] = field(default_factory=dict)
    spoilt: Mapping[int, FailureKind] = field(default_factory=dict)
    final_fails: Mapping[int, FailureKind] = field(default_factory=dict)
    first_ms: Mapping[int, float] = field(default_factory=dict)
    slowdown: Mapping[str, float] = field(default_factory=dict)
    final_noise: Callable[[int], float] = lambda index: 1.0
    final_losses: int = 0
    cicc: bool = False
    compare_s: float = 1.0
    compare_fails: bool = False
    compare_losses: int = 0
    differs: bool = False
    plain_ms: Callable[[Config], float] | None = None
    plain_fails: Mapping[int, FailureKind] = field(default_factory=dict)
    prepare_error: str = ""

    def failure(self, index: int, stage: Stage) -> FailureKind | None:
        """Return the kind of failure scripted for candidate `index` in `stage`."""
        scripted = self.fails.get(index)
        if scripted is None:
            return None
        where, kind = scripted if isinstance(scripted, tuple) else (STAGE_OF.get(scripted, "measure"), scripted)
        return kind if where == stage else None

    def latency_of(self, config: Config, *, plain: bool, final: bool) -> float:
        """Return the latency, ms, of a candidate's first library or of its plain one."""
        if self.cicc and plain and self.plain_ms is not None:
            return self.plain_ms(config)
        return (self.final_ms if final and self.final_ms is not None else self.latency_ms)(config)


def seconds_of(seconds: Seconds, config: Config) -> float:
    """Return the script's seconds for `config`."""
    return seconds(config) if callable(seconds) else seconds


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
        machine._given[index] = candidate.config
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
