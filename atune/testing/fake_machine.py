"""A fake `Machine` and its virtual clock. The machine follows a script, records all calls and starts no process."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio
import anyio.lowlevel

from atune.engine.interfaces import CompileHints, ignored
from atune.errors import WorkerError, WorkerLost, WorkloadError
from atune.model import jobs
from atune.model.artifact import (
    Artifact,
    Built,
    Compared,
    Elaborated,
    Failure,
    KernelParam,
    Lowered,
    Roles,
)
from atune.model.candidate import BASELINE, Config, config_key, space_hash
from atune.model.device import DeviceInfo, DeviceLimits, Target
from atune.model.folders import run_folder
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.model.space import Space
from atune.testing.script import FATAL, Script, Stage
from atune.workers.waiting import background
from atune.workload.workload import Workload, WorkloadSpec, with_space

SCRIPTED_KILL = "scripted to be killed from outside"


class FakeCompileWorker:
    """A fake compile worker, which does what the machine's script says."""

    def __init__(self, machine: FakeMachine, name: str) -> None:
        self.machine, self.name = machine, name

    async def run(self, job: jobs.Job[jobs.A]) -> jobs.A:
        return cast(jobs.A, await getattr(self, f"_{job.name}")(job))

    async def _find(self, job: jobs.FindJob) -> None:
        """Return None, because a fake machine has no artifact store."""

    async def _roles(self, job: jobs.RolesJob) -> Roles | Failure:
        index = job.candidate.index
        self.machine.examined.append(index)
        kind = self.machine.script.failure(index, "lower")
        return Roles(outputs=(0,)) if kind is None else Failure(index, kind, f"scripted to fail: {kind}")

    async def _lower(self, job: jobs.LowerJob) -> Lowered | Failure:
        machine, script, candidate, index = self.machine, self.machine.script, job.candidate, job.candidate.index
        machine.lowered.append(index)
        machine._given[index] = candidate.config
        seconds = script.seconds(script.lower_s, "lower", index, candidate.config)
        if failure := await self._failure("lower", index, seconds, "lowering"):
            return failure
        return Lowered(
            index=index,
            code_key=script.code_key(candidate.config),
            ir_digest=script.ir_digest(candidate.config),
            merge_key="",
            params=(KernelParam("float32", (1,)),),
            facts=script.facts(candidate.config),
            seconds=seconds,
            blob=b"",
        )

    async def _elaborate(self, job: jobs.ElaborateJob) -> list[Elaborated | Failure] | jobs.GroupFailed:
        machine, script, candidates = self.machine, self.machine.script, job.candidates
        if job.digests:
            return [Elaborated(c.index, ir_digest=script.ir_digest(c.config)) for c in candidates]
        answers = list[Elaborated | Failure]()
        machine.elaborated.append(tuple(candidate.index for candidate in candidates))
        for index, config in ((candidate.index, candidate.config) for candidate in candidates):
            seconds = script.seconds(script.elaborate_s, "elaborate", index, config)
            failure = await self._failure("elaborate", index, seconds, "elaborating")
            if failure is not None and failure.kind == "timeout" and len(candidates) > 1:
                return jobs.GroupFailed(failure.message)
            answers.append(failure or Elaborated(index, script.facts(config)))
        return answers

    async def _failure(self, stage: Stage, index: int, seconds: float, doing: str) -> Failure | None:
        """Spend the time that `stage` takes for a candidate, and return the failure that the script gives, or None."""
        machine, limit = self.machine, self.machine.compile.compile_timeout_s
        if not await machine.spend(stage, seconds, limit):
            return Failure(index, "timeout", jobs.PAST_COMPILE_TIMEOUT.format(doing=doing, limit_s=limit))
        if machine.killed(index, stage):
            return Failure(index, "worker_lost", SCRIPTED_KILL, doubt=SCRIPTED_KILL)
        if kind := machine.script.failure(index, stage):
            return Failure(index, kind, f"scripted to fail: {kind}", "output of the fake")
        return None

    async def _build(self, job: jobs.BuildJob) -> list[Built] | jobs.GroupFailed:
        machine, script, group = self.machine, self.machine.script, job.group
        compiler, state = ("cicc", "fake") if script.cicc and not job.plain else ("", "")
        limit = job.limit_s or machine.compile.compile_timeout_s
        indices = tuple(member.index for member in group)
        machine.groups.append(indices)
        each_s = [script.seconds(script.compile_s, "build", i, machine.config_of(i)) for i in indices]
        seconds = script.library_s + sum(each_s)
        kinds = [kind for i in indices if (kind := script.failure(i, "build"))]
        message, doubt = f"scripted to fail: {''.join(kinds[:1])}", ""
        if not await machine.spend("build", seconds, limit):
            kinds, message = ["timeout"], jobs.PAST_COMPILE_TIMEOUT.format(doing="compiling", limit_s=limit)
            if job.limit_s is not None:
                kinds, message = ["hopeless"], jobs.HOPELESS.format(limit_s=limit)
        if any(machine.killed(i, "build") for i in indices):
            kinds, message, doubt = ["worker_lost"], SCRIPTED_KILL, SCRIPTED_KILL
        if kinds and len(group) > 1:
            return jobs.GroupFailed(message, doubt)
        if kinds:
            return [Failure(indices[0], kinds[0], message, "output of the fake", doubt)]
        path = machine.new_library()
        return [
            Artifact(m.index, path, f"fake_{m.index}", m.params, "c", seconds, compiler=compiler, state=state)
            for m in group
        ]

    async def _compare(self, job: jobs.CompareJob) -> Compared | Failure:
        machine, script, index = self.machine, self.machine.script, job.candidate.index
        machine.compared.append(index)
        lost = len(machine.compared) <= script.compare_losses
        await machine.spend("compare", script.compare_s)
        if lost:
            raise WorkerLost(f"{self.name} is scripted to be lost while it compares")
        if script.compare_fails:
            return Failure(index, "compile", "nvcc is scripted to fail")
        return Compared(index, "the device code" if script.differs else "")


class FakeDeviceWorker:
    """A fake process for a device, which does what the machine's script says."""

    def __init__(self, machine: FakeMachine, info: DeviceInfo) -> None:
        self.machine, self.info = machine, info
        self.name = info.id
        self.alive = False
        self._used = False
        """Whether a candidate has already run in this process."""

    async def run(self, job: jobs.Job[jobs.A]) -> jobs.A:
        return cast(jobs.A, await getattr(self, f"_{job.name}")(job))

    async def _start(self, job: jobs.StartJob) -> jobs.Started:
        """Start the process. Raises `WorkerError` if the script makes this start fail."""
        self.alive = self._used = False
        machine = self.machine
        machine.starts[self.name] += 1
        await machine.spend("start", machine.script.start_s)
        if machine.starts[self.name] <= machine.script.start_failures.get(self.name, 0):
            raise WorkerError(f"{self.name} is scripted not to start", "output of the fake driver")
        self.alive = True
        return jobs.Started(self.info)

    async def _prepare(self, job: jobs.PrepareJob) -> jobs.Prepared:
        self._check_alive()
        if self.machine.script.prepare_error:
            raise WorkloadError(self.machine.script.prepare_error)
        await self.machine.spend("prepare", 0.1)
        reference = self.machine.script.reference_ms
        slowdown = self.machine.script.slowdown.get(self.name, 1.0)
        timed = None if reference is None else _timing(reference * slowdown, self.machine.benchmark.n_repeat)
        return jobs.Prepared(timed)

    async def _bits(self, job: jobs.BitsJob) -> jobs.Bits:
        self._check_alive()
        configs = [self.machine.config_of(artifact.index) for artifact in job.artifacts]
        return jobs.Bits(tuple(tuple(self.machine.script.bits(c, s) for s in job.seeds) for c in configs))

    async def _measure(self, job: jobs.MeasureJob) -> Measurement | Failure:
        self._check_alive()
        machine, script, artifact = self.machine, self.machine.script, job.artifact
        index = artifact.index
        config = machine.config_of(index)
        machine.measured[self.name].append(index)
        before = machine.begun[index]
        machine.begun[index] += 1
        seconds = script.seconds(script.measure_s, "measure", index, config)
        in_time = await machine.spend("measure", seconds, machine.benchmark.benchmark_timeout_s)
        used, self._used = self._used, True
        if failure := self._failure(artifact, before, used=used, in_time=in_time):
            self.alive = failure.kind not in FATAL
            return failure
        if before < script.dies_after.get(index, 0):
            self.alive = False
        checked = script.reference_ms is not None and machine.benchmark.check
        early = script.first_ms.get(index) if not before else None
        latency = script.latency_of(config, plain=artifact.plain, final=False) if early is None else early
        timing = _timing(latency * script.slowdown.get(self.name, 1.0), machine.benchmark.n_repeat)
        error, bits = 0.0 if checked else None, script.bits(config, 0)
        repeats = bits == script.bits(config, 0)
        return Measurement(artifact.index, timing, checked, error, seconds, bits=bits, repeats=repeats)

    def _failure(self, artifact: Artifact, before: int, *, used: bool, in_time: bool) -> Failure | None:
        """Return the failure that the script gives for a measurement, or None.

        `before`: the number of earlier measurements of the candidate. `used`: whether another candidate has run in the
        process. `in_time`: whether the measurement met its deadline.
        """
        script, index, limit = self.machine.script, artifact.index, self.machine.benchmark.benchmark_timeout_s
        kind = script.failure(index, "measure")
        if script.cicc and artifact.plain:
            kind = script.plain_fails.get(index)
        message = f"scripted to fail: {kind}"
        if not in_time:
            kind, message = "timeout", jobs.PAST_BENCHMARK_TIMEOUT.format(limit_s=limit)
        doubt = "" if before >= script.doubts.get(index, 0) else "scripted to be another's fault"
        if used and kind is None and index in script.spoilt:
            kind, doubt = script.spoilt[index], "scripted to be spoilt by another candidate"
        elif doubt and kind is None:
            kind = "worker_lost"
        return None if kind is None else Failure(index, kind, message, "output of the fake", doubt)

    async def _final(self, job: jobs.FinalJob) -> jobs.Finals:
        self._check_alive()
        self._used = True
        machine, script = self.machine, self.machine.script
        machine.finals.append(tuple(artifact.index for artifact in job.artifacts))
        if len(machine.finals) <= script.final_losses:
            self.alive = False
            raise WorkerLost(f"device {self.name} is scripted to be lost in the final")
        await machine.spend("final", 0.1 * len(job.artifacts))
        entries, failures = [], []
        for artifact in job.artifacts:
            index = artifact.index
            ms = script.latency_of(machine.config_of(index), plain=artifact.plain, final=True)
            samples = [1e3 * ms * script.final_noise(index) for _ in range(job.rounds)]
            entries.append(FinalEntry(index, Timing.of(samples, "perf_counter")))
            if kind := script.final_fails.get(index):
                failures.append(Failure(index, kind, f"scripted to fail in the final: {kind}"))
                self.alive &= kind not in FATAL
        timing = None if script.reference_ms is None else _timing(script.reference_ms, job.rounds)
        return jobs.Finals(tuple(entries), timing, tuple(failures))

    def _check_alive(self) -> None:
        if not self.alive:
            raise WorkerLost(f"device {self.name} was never started or was lost")


def _timing(latency_ms: float, samples: int) -> Timing:
    return Timing.of([latency_ms * 1e3] * samples, "perf_counter")


SETTLE = 24
"""If no task begins to sleep in this number of turns of the event loop, the clock assumes that all tasks wait."""


class FakeClock:
    """A virtual clock, in seconds. When all tasks wait, the clock jumps to the time at which the next task wakes.

    Tasks wake one at a time, in the order of their wake-up times, so a script always produces the same order of events.
    `pace`: the real seconds that a virtual second takes, 0 by default. Only one event loop at a time may use a clock.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.now = 0.0
        self.pace = pace
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._activity = 0
        self._joined = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of virtual time, which may be infinite."""
        self._activity += 1
        sleeper = (self.now + seconds, self._activity, anyio.Event())
        heapq.heappush(self._sleepers, sleeper)
        self._joined.set()
        try:
            await sleeper[2].wait()
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    async def run(self) -> None:
        """Advance the time until cancelled. An open machine runs this method."""
        while True:
            await self._settle()
            end = self._sleepers[0][0] if self._sleepers else math.inf
            if math.isinf(end):
                self._joined = anyio.Event()
                await self._joined.wait()
            elif self.pace and end > self.now:
                step = min(end - self.now, 0.01 / self.pace)  # an earlier sleeper may join meanwhile
                await anyio.sleep(step * self.pace)
                self.now += step
            else:
                end, _, event = heapq.heappop(self._sleepers)
                self.now = max(self.now, end)
                self._activity += 1
                event.set()

    async def _settle(self) -> None:
        quiet, seen = 0, self._activity
        while quiet < SETTLE:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if self._activity == seen else 0
            seen = self._activity


def _kernel(**config: object) -> None:
    """A stand-in for a kernel that takes any configuration."""


@dataclass(eq=False)
class Calls:
    """The recorded calls of a fake machine. Lists are in the order in which calls began, and include failed calls."""

    opened: int = 0
    closed: int = 0
    examined: list[int] = field(default_factory=list)
    """Candidates whose code was examined to find the roles of the parameters."""
    elaborated: list[tuple[int, ...]] = field(default_factory=list)
    lowered: list[int] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    """The groups of candidates that were compiled together."""
    compared: list[int] = field(default_factory=list)
    """Candidates that were also compiled with nvcc, to compare the library with the library from cicc."""
    measured: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The candidates that each device measured."""
    begun: Counter[int] = field(default_factory=Counter)
    """How many measurements of each candidate have begun, on all devices together."""
    finals: list[tuple[int, ...]] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)
    """How many times each device's process was started."""
    cancelled: Counter[str] = field(default_factory=Counter)
    """The number of cancelled calls for each stage."""
    most_at_once: Counter[str] = field(default_factory=Counter)
    """The largest number of concurrent calls for each stage."""


class FakeMachine(Calls):
    """A fake `Machine` that does what a `Script` says, and records all calls in the attributes of `Calls`.

    Parameters
    ----------
    configs
        A list of configurations, a `Space` that needs no arguments, or a number n for ``{"x": 0}`` to ``{"x": n - 1}``.
    script
        The behaviour of each candidate.
    workers, devices
        The number of compile workers, and the number of devices, which are named ``fake-0``, ``fake-1`` and so on.
    limits
        The hard limits of every device.
    clock
        The `FakeClock` to use. By default, `open` makes a new clock.
    compile, benchmark
        The settings. The fake uses the two deadlines, `check` and `n_repeat`, and ignores all other settings.
    default
        The index of the default configuration, or a configuration that the space does not list.
    refused
        The reason that the default must not win.
    no_default
        The reason that there is no default.
    fingerprint, device_name, target
        Values that `describe` and `discover` return, for tests that compare journals.
    """

    def __init__(
        self,
        configs: int | Sequence[Config] | Space = 8,
        script: Script | None = None,
        *,
        workers: int = 2,
        devices: int = 1,
        limits: DeviceLimits | None = None,
        clock: FakeClock | None = None,
        compile: CompileSettings | None = None,
        benchmark: BenchmarkSettings | None = None,
        default: int | Config | None = None,
        refused: str = "",
        no_default: str = "",
        fingerprint: str = "",
        device_name: str = "a fake device",
        target: str = "c",
    ) -> None:
        super().__init__()
        self._workload = Workload(_kernel, configs) if isinstance(configs, Space) else None
        listed = [{"x": i} for i in range(configs)] if isinstance(configs, int) else configs
        self.configs: list[Config] = [] if isinstance(listed, Space) else [dict(config) for config in listed]
        self.script = script or Script()
        self.target = Target("c") if target == "c" else Target("cuda", target)
        self.clock = clock
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self.default, self.refused, self.no_default = default, refused, no_default
        self.fingerprint = fingerprint or "fake"
        self._given: dict[int, Config] = {}
        """The configuration of each candidate that a worker has lowered, by index."""
        self._folder = Path()
        self._libraries = 0
        self._kills, self._now_running = Counter[int](), Counter[str]()
        self._compile_workers = [FakeCompileWorker(self, f"compile-{i}") for i in range(workers)]
        self._device_workers = [
            FakeDeviceWorker(self, DeviceInfo(f"fake-{i}", device_name, limits=limits or DeviceLimits()))
            for i in range(devices)
        ]

    @asynccontextmanager
    async def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AsyncGenerator[None, None]:
        """Make the folder for the libraries, and remove the folder at the end of the context."""
        self.clock = self.clock or FakeClock()
        with run_folder() as folder:  # if this program is killed, the next run removes it
            self._folder = Path(folder)
            self.opened += 1
            try:
                async with background() as tasks:
                    tasks.start_soon(self.clock.run)
                    yield
            finally:
                self.closed += 1

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        await anyio.lowlevel.checkpoint()
        spec = WorkloadSpec(
            name="fake",
            origin="",
            arguments={},
            configs=tuple(self.configs),
            default=BASELINE if isinstance(self.default, dict) else self.default,
            baseline=self.default if isinstance(self.default, dict) else None,
            refused=self.refused,
            no_default=self.no_default,
            fingerprint=self.fingerprint,
            code=self.fingerprint,
            problem={},
            space=space_hash(map(config_key, self.configs)),
        )
        if self._workload is not None:
            spec = with_space(spec, self._workload, seed)
            self.configs = list(spec.configs)
        return spec

    def config_of(self, index: int) -> Config:
        """Return the configuration of candidate `index`."""
        return self._given[index] if index in self._given else self.configs[index]

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        await anyio.lowlevel.checkpoint()
        return self.target, [worker.info for worker in self._device_workers]

    def compile_workers(self) -> list[FakeCompileWorker]:
        """Return the fake compile workers."""
        return self._compile_workers

    async def prepare(self, candidates: int) -> None:
        await anyio.lowlevel.checkpoint()

    def hints(self, measuring: int) -> CompileHints:
        return CompileHints()

    async def sleep(self, seconds: float) -> None:
        assert self.clock is not None, "the machine is not open"
        await self.clock.sleep(seconds)

    def device_workers(self) -> list[FakeDeviceWorker]:
        """Return the worker of each device, beginning with ``fake-0``."""
        return self._device_workers

    def versions(self) -> dict[str, str]:
        """Return the versions that a run enters in the header of its journal."""
        return {"fake": "1"}

    @property
    def running(self) -> int:
        """The number of calls that are running now."""
        return sum(self._now_running.values())

    async def spend(self, stage: str, seconds: float, limit_s: float = math.inf) -> bool:
        """Sleep for `seconds` of virtual time, but at most `limit_s`. Return whether `seconds` is within the limit."""
        assert self.clock is not None, "the machine is not open"
        self._now_running[stage] += 1
        self.most_at_once[stage] = max(self.most_at_once[stage], self._now_running[stage])
        try:
            await self.clock.sleep(min(seconds, limit_s))
        except anyio.get_cancelled_exc_class():
            self.cancelled[stage] += 1
            raise
        finally:
            self._now_running[stage] -= 1
        return seconds <= limit_s

    def killed(self, index: int, stage: Stage) -> bool:
        """Tell whether the script now kills the compile worker of candidate `index` in `stage`, and count the kill."""
        where, times = self.script.kills.get(index, (stage, 0))
        kill = where == stage and self._kills[index] < times
        self._kills[index] += kill
        return kill

    def new_library(self) -> str:
        """Write a file that stands in for a library, and return the path of the file."""
        path = self._folder / f"{self._libraries}.so"
        self._libraries += 1
        path.write_bytes(b"a library of the fakes")
        return str(path)
