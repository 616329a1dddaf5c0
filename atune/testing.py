"""Fakes for tests of the engine and of what is built on it: compilers, devices and a clock, scripted.

    backend = FakeBackend(24, Script(latency_ms=lambda config: 1 + config["x"], fails={3: "compile"}))
    result = await atune.tune(backend=backend)
    assert backend.measured["fake-0"] == [0, 1, 2, ...]

No process is started and no tilelang, torch or CUDA is needed; time is virtual, so that a run takes milliseconds
whatever its script says. `FakeBackend` keeps `atune.backend.Backend`, and the contract suite holds it to what the real
ones do.
"""

from __future__ import annotations

import heapq
import math
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import anyio.lowlevel
import msgspec

from atune.artifact import Artifact, Built, Failure, FailureKind, KernelParam, Lowered, StaticFacts
from atune.backend import GroupFailed
from atune.candidate import Candidate, Config, config_key
from atune.device import DeviceInfo, DeviceLimits, Target
from atune.errors import WorkerError, WorkerLost, WorkloadError
from atune.measurement import FinalEntry, Measurement, Timing
from atune.settings import BenchmarkSettings, CompileSettings
from atune.workload import WorkloadSpec

Stage = Literal["lower", "build", "measure"]
Seconds = float | Callable[[Config], float]

STAGE_OF: dict[FailureKind, Stage] = {"lower": "lower", "codegen": "build", "compile": "build", "crash": "build"}
"""Where a kind of failure happens by itself; every other kind happens while measuring."""
FATAL: tuple[FailureKind, ...] = ("fault", "worker_lost", "timeout")
"""Failures that cost a device its process."""
SETTLE = 24
"""Turns of the event loop without a new sleeper after which everyone is taken to be waiting for the clock."""


class FakeClock:
    """Virtual time, in seconds, that jumps to the next sleeper's end once nobody has anything else to do.

    Sleepers wake one at a time, in the order of their ends, so that a script's order of events is always the same.
    `pace` is how many real seconds one virtual second takes; 0 takes none. One event loop at a time.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.now = 0.0
        self.pace = pace
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._started = 0
        self._activity = 0
        self._driven = False
        self._joined = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep `seconds` of virtual time; for ever where it is infinite."""
        end, event = self.now + seconds, anyio.Event()
        self._started += 1
        self._activity += 1
        sleeper = (end, self._started, event)
        heapq.heappush(self._sleepers, sleeper)
        self._joined.set()
        try:
            while sleeper in self._sleepers:
                if self._driven:
                    await sleeper[2].wait()
                    if sleeper in self._sleepers:  # woken to drive, not because its time had come
                        sleeper = self._renewed(sleeper)
                else:
                    await self._drive(sleeper)
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)
            if not self._driven and self._sleepers:
                self._sleepers[0][2].set()  # the next one moves the clock from here on
        await anyio.lowlevel.checkpoint()

    def _renewed(self, sleeper: tuple[float, int, anyio.Event]) -> tuple[float, int, anyio.Event]:
        fresh = (sleeper[0], sleeper[1], anyio.Event())
        self._sleepers[self._sleepers.index(sleeper)] = fresh
        return fresh

    async def _drive(self, own: tuple[float, int, anyio.Event]) -> None:
        """Move the clock until `own`'s end."""
        self._driven = True
        try:
            while own in self._sleepers:
                await self._settle()
                end, _, event = self._sleepers[0]
                if math.isinf(end):
                    self._joined = anyio.Event()
                    await self._joined.wait()
                    continue
                if self.pace and end > self.now:
                    step = min(end - self.now, 0.01 / self.pace)
                    await anyio.sleep(step * self.pace)
                    self.now += step
                    if self.now < end:
                        continue
                self.now = max(self.now, end)
                # Somebody may have come in between; the earliest is woken in any case.
                _, _, event = heapq.heappop(self._sleepers)
                self._activity += 1
                event.set()
        finally:
            self._driven = False

    async def _settle(self) -> None:
        quiet, seen = 0, self._activity
        while quiet < SETTLE:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if self._activity == seen else 0
            seen = self._activity


class InstantClock(FakeClock):
    """Virtual time in which every sleep ends at once, whoever else sleeps: for what an engine costs by itself.

    One that is infinite does not end.
    """

    async def sleep(self, seconds: float) -> None:
        if math.isinf(seconds):
            await anyio.sleep_forever()
        self.now += seconds
        await anyio.lowlevel.checkpoint()


@dataclass(frozen=True)
class Script:
    """What the fakes do, by configuration or by candidate index. Times are in virtual seconds.

    `latency_ms` is the kernel's latency, `final_ms` the one the final sees (the same by default). `compile_s` is what
    each member adds to a library's `library_s`. `fails` maps a candidate to the kind of its failure, which tells the
    stage (`STAGE_OF`), or to (stage, kind); one that fails in ``build`` fails every group it is in. `hangs` maps a
    candidate to the stage that never ends for it, which the deadlines of the settings cut off. Failures of a kind in
    `FATAL` cost a device its process. `code_key` equal for two configurations makes them duplicates; only those of
    equal `merge_key` share a library. `start_failures` says how often a device, by its name, does not start before it
    does (`math.inf`: never). `prepare_error` makes the user's inputs or reference fail. `output` is what a kernel
    writes.

    `doubts` says how often a candidate's device is killed from outside while it is measured; `dies_after` how often
    it dies once the candidate was measured. `first_ms` is a latency that only the first measuring sees. `slowdown` is
    how many times slower kernels and the reference run on a device, by its name. `final_noise` multiplies each sample
    of a candidate in the final; in the first `final_losses` calls of the final the device is lost.
    """

    latency_ms: Callable[[Config], float] = lambda config: 1.0
    final_ms: Callable[[Config], float] | None = None
    reference_ms: float | None = 2.0
    lower_s: Seconds = 0.1
    library_s: float = 1.0
    compile_s: Seconds = 0.5
    measure_s: Seconds = 0.2
    start_s: float = 1.0
    fails: Mapping[int, FailureKind | tuple[Stage, FailureKind]] = field(default_factory=dict)
    hangs: Mapping[int, Stage] = field(default_factory=dict)
    facts: Callable[[Config], StaticFacts] = lambda config: StaticFacts()
    code_key: Callable[[Config], str] = config_key
    merge_key: Callable[[Config], str] = lambda config: ""
    start_failures: Mapping[str, float] = field(default_factory=dict)
    doubts: Mapping[int, int] = field(default_factory=dict)
    dies_after: Mapping[int, int] = field(default_factory=dict)
    first_ms: Mapping[int, float] = field(default_factory=dict)
    slowdown: Mapping[str, float] = field(default_factory=dict)
    final_noise: Callable[[int], float] = lambda index: 1.0
    final_losses: int = 0
    prepare_error: str = ""
    output: Callable[[Config], bytes] = lambda config: config_key(config).encode()

    def failure(self, index: int, stage: Stage) -> FailureKind | None:
        """Return the kind of failure scripted for candidate `index` in `stage`."""
        scripted = self.fails.get(index)
        if scripted is None:
            return None
        where, kind = scripted if isinstance(scripted, tuple) else (STAGE_OF.get(scripted, "measure"), scripted)
        return kind if where == stage else None


class FakeBackend:
    """A `Backend` that follows a `Script`, and counts.

    Parameters
    ----------
    configs
        The space: configurations, or their number (``{"x": 0}``, ``{"x": 1}``, …).
    script
        What each candidate does.
    lanes, devices
        Compile workers, and devices (``fake-0``, ``fake-1``, …).
    speeds
        How many times faster than the script each device measures; 1 for those not named.
    limits
        Hard limits of every device.
    clock
        A `FakeClock`; a new one by default.
    compile, benchmark
        Settings, of which the two deadlines matter here.
    default
        Index of the default configuration.
    fingerprint, device_name
        What `describe` and `discover` tell, for tests of what a journal is compared by.
    """

    def __init__(
        self,
        configs: int | Sequence[Config] = 8,
        script: Script | None = None,
        *,
        lanes: int = 2,
        devices: int = 1,
        speeds: Sequence[float] = (),
        limits: DeviceLimits | None = None,
        clock: FakeClock | None = None,
        compile: CompileSettings | None = None,
        benchmark: BenchmarkSettings | None = None,
        default: int | None = None,
        fingerprint: str = "",
        device_name: str = "a fake device",
    ) -> None:
        self.configs = [{"x": i} for i in range(configs)] if isinstance(configs, int) else [dict(c) for c in configs]
        self.script = script or Script()
        self.clock = clock
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self.default = default
        self.described = self.configs
        """The configurations as `describe` gives them; of another order or number for tests of a space that changed."""
        self.fingerprint = fingerprint or "fake"
        self.opened = self.closed = 0
        """How often `open` was entered, and left."""
        self.lowered: list[int] = []
        """Candidates in the order in which their lowering began."""
        self.groups: list[tuple[int, ...]] = []
        """Groups in the order in which their building began, failed ones too."""
        self.measured: defaultdict[str, list[int]] = defaultdict(list)
        """Candidates in the order in which their measuring began, by device."""
        self.best_known: list[float | None] = []
        """The best latency that each measuring was told, in the order in which they began."""
        self.finals: list[tuple[int, ...]] = []
        self.starts: Counter[str] = Counter()
        """Starts of each device's process, failed ones too."""
        self.cancelled: Counter[str] = Counter()
        """Calls that were cancelled, by stage."""
        self.most_at_once: Counter[str] = Counter()
        """Largest number of calls at the same time, by stage."""
        self._now_running: Counter[str] = Counter()
        self._folder = Path()
        self._libraries = 0
        factors = [*speeds, *[1.0] * devices][:devices]
        self._compile_lanes = [FakeCompileLane(self, f"compile-{i}") for i in range(lanes)]
        self._device_lanes = [
            FakeDeviceLane(self, DeviceInfo(f"fake-{i}", device_name, limits=limits or DeviceLimits()), speed)
            for i, speed in enumerate(factors)
        ]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Make the folder of the libraries; on leaving, remove it."""
        self.clock = self.clock or FakeClock()
        self._folder = Path(tempfile.mkdtemp(prefix="atune-fake-"))
        self.opened += 1
        try:
            yield
        finally:
            self.closed += 1
            shutil.rmtree(self._folder, ignore_errors=True)

    async def describe(self) -> WorkloadSpec:
        await anyio.lowlevel.checkpoint()
        return WorkloadSpec(
            name="fake",
            origin="",
            arguments={},
            configs=tuple(self.described),
            default=self.default,
            fingerprint=self.fingerprint,
            has_reference=self.script.reference_ms is not None,
            out_idx=(-1,),
        )

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        await anyio.lowlevel.checkpoint()
        return Target("c"), [lane.info for lane in self._device_lanes]

    def compile_lanes(self, candidates: int | None = None) -> list[FakeCompileLane]:
        return self._compile_lanes

    in_a_row = 1

    def hold_builds(self) -> tuple[bool, bool]:
        return False, False

    def resting(self, measuring: int) -> int:
        return 0

    def on_change(self, wake: Callable[[], None]) -> None:
        pass

    def remarks(self) -> list[str]:
        return []

    def device_lanes(self) -> list[FakeDeviceLane]:
        return self._device_lanes

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    @property
    def running(self) -> int:
        """Calls that are under way."""
        return sum(self._now_running.values())

    async def take(self, seconds: float, limit_s: float = math.inf) -> bool:
        """Let virtual time pass; false where `limit_s` came first."""
        assert self.clock is not None, "the backend is not open"
        await self.clock.sleep(min(seconds, limit_s))
        return seconds <= limit_s

    def new_library(self, group: Sequence[Lowered]) -> str:
        """Write a library: what its symbols compute, as data."""
        path = self._folder / f"{self._libraries}.so"
        self._libraries += 1
        path.write_bytes(msgspec.msgpack.encode({symbol_of(member.index): member.index for member in group}))
        return str(path)

    @contextmanager
    def running_as(self, stage: str) -> Generator[None, None, None]:
        """Count a call of `stage`."""
        self._now_running[stage] += 1
        self.most_at_once[stage] = max(self.most_at_once[stage], self._now_running[stage])
        try:
            yield
        except anyio.get_cancelled_exc_class():
            self.cancelled[stage] += 1
            raise
        finally:
            self._now_running[stage] -= 1


class FakeCompileLane:
    """A compile worker."""

    def __init__(self, backend: FakeBackend, name: str) -> None:
        self.backend, self.name = backend, name

    async def lower(self, candidate: Candidate) -> Lowered | Failure:
        backend, script, index = self.backend, self.backend.script, candidate.index
        limit = backend.compile.compile_timeout_s
        backend.lowered.append(index)
        with backend.running_as("lower"):
            seconds = math.inf if script.hangs.get(index) == "lower" else _seconds(script.lower_s, candidate.config)
            if not await backend.take(seconds, limit):
                return Failure(index, "timeout", f"lowering ran past compile_timeout_s={limit:g}")
        if kind := script.failure(index, "lower"):
            return Failure(index, kind, f"scripted to fail: {kind}", "what the fake said")
        return Lowered(
            index=index,
            code_key=script.code_key(candidate.config),
            merge_key=script.merge_key(candidate.config),
            params=(KernelParam("float32", (1,)),),
            facts=script.facts(candidate.config),
            seconds=seconds,
            blob=b"",
        )

    async def find(self, lowered: Lowered) -> Artifact | None:
        return None

    async def build(self, group: Sequence[Lowered]) -> list[Built]:
        backend, script = self.backend, self.backend.script
        limit = backend.compile.compile_timeout_s
        indices = tuple(member.index for member in group)
        backend.groups.append(indices)
        seconds = script.library_s + sum(_seconds(script.compile_s, backend.configs[i]) for i in indices)
        kinds = [kind for i in indices if (kind := script.failure(i, "build"))]
        with backend.running_as("build"):
            if not await backend.take(
                math.inf if any(script.hangs.get(i) == "build" for i in indices) else seconds, limit
            ):
                kinds = ["timeout"]
        if kinds:
            message = (
                f"compiling ran past compile_timeout_s={limit:g}"
                if kinds[0] == "timeout"
                else f"scripted to fail: {kinds[0]}"
            )
            if len(group) > 1:
                raise GroupFailed(message)
            return [Failure(indices[0], kinds[0], message, "what the fake said")]
        path = backend.new_library(group)
        return [Artifact(m.index, path, symbol_of(m.index), m.params, "c", seconds) for m in group]


class FakeDeviceLane:
    """A device's process. `speed` divides what measuring takes."""

    def __init__(self, backend: FakeBackend, info: DeviceInfo, speed: float) -> None:
        self.backend, self.info, self.speed = backend, info, speed
        self.name = info.id
        self.alive = False
        self.took_over = False

    async def start(self) -> DeviceInfo:
        self.alive = False
        backend = self.backend
        backend.starts[self.name] += 1
        with backend.running_as("start"):
            await backend.take(backend.script.start_s)
        if backend.starts[self.name] <= backend.script.start_failures.get(self.name, 0):
            raise WorkerError(f"{self.name} is scripted not to start", "what the fake driver said")
        self.alive = True
        return self.info

    async def prepare(self, artifact: Artifact) -> Timing | None:
        self._check_alive()
        if self.backend.script.prepare_error:
            raise WorkloadError(self.backend.script.prepare_error)
        with self.backend.running_as("prepare"):
            await self.backend.take(0.1 / self.speed)
        reference = self.backend.script.reference_ms
        slowdown = self.backend.script.slowdown.get(self.name, 1.0)
        return None if reference is None else _timing(reference * slowdown, self.backend.benchmark.n_repeat)

    async def measure(self, artifact: Artifact, best_ms: float | None = None) -> Measurement | Failure:
        self._check_alive()
        backend, script = self.backend, self.backend.script
        limit = backend.benchmark.benchmark_timeout_s
        index = self._loaded(artifact)
        config = backend.configs[index]
        backend.measured[self.name].append(index)
        backend.best_known.append(best_ms)
        before = sum(i == index for done in backend.measured.values() for i in done) - 1
        seconds = _seconds(script.measure_s, config) / self.speed
        kind = script.failure(index, "measure")
        message = f"scripted to fail: {kind}"
        with backend.running_as("measure"):
            if not await backend.take(math.inf if script.hangs.get(index) == "measure" else seconds, limit):
                kind, message = "timeout", f"ran past benchmark_timeout_s={limit:g}; killed"
        doubt = "" if before >= script.doubts.get(index, 0) else "scripted to be another's fault"
        if doubt and kind is None:
            kind = "worker_lost"
        elif kind is None and index in script.dies_after and before < script.dies_after[index]:
            self.alive = False
        if kind is not None:
            self.alive = kind not in FATAL
            return Failure(artifact.index, kind, message, "what the fake said", doubt)
        checked = script.reference_ms is not None and backend.benchmark.check
        early = script.first_ms.get(index) if not before else None
        latency = script.latency_ms(config) if early is None else early
        timing = _timing(latency * script.slowdown.get(self.name, 1.0), backend.benchmark.n_repeat)
        return Measurement(artifact.index, timing, checked, 0.0 if checked else None, seconds)

    async def final(
        self, artifacts: Sequence[Artifact], rounds: int, with_reference: bool = True
    ) -> tuple[list[FinalEntry], Timing | None]:
        self._check_alive()
        backend, script = self.backend, self.backend.script
        if len(backend.finals) < script.final_losses:
            backend.finals.append(tuple(self._loaded(artifact) for artifact in artifacts))
            self.alive = False
            raise WorkerLost(f"device {self.name} is scripted to be lost in the final")
        indices = tuple(self._loaded(artifact) for artifact in artifacts)
        backend.finals.append(indices)
        with backend.running_as("final"):
            await backend.take(0.1 * len(indices) / self.speed)
        latency = script.final_ms or script.latency_ms
        noise = script.final_noise
        entries = [
            FinalEntry(i, Timing.of([1e3 * ms * noise(i) for _ in range(rounds)], "perf_counter"))
            for i, ms in ((i, latency(backend.configs[i])) for i in indices)
        ]
        reference = script.reference_ms if with_reference else None
        return entries, None if reference is None else _timing(reference, rounds)

    async def outputs(self, artifact: Artifact) -> list[bytes]:
        """Run `artifact` once and return its outputs' bytes: for tests of what a library's members compute."""
        self._check_alive()
        await self.backend.take(0.01)
        return [self.backend.script.output(self.backend.configs[self._loaded(artifact)])]

    def _loaded(self, artifact: Artifact) -> int:
        library: dict[str, int] = msgspec.msgpack.decode(Path(artifact.path).read_bytes())
        return library[artifact.symbol]

    def _check_alive(self) -> None:
        if not self.alive:
            raise WorkerLost(f"device {self.name} was not started, or was lost")


def symbol_of(index: int) -> str:
    """Return the symbol of candidate `index` in a fake library."""
    return f"fake_kernel_{index}"


def _seconds(seconds: Seconds, config: Config) -> float:
    return seconds(config) if callable(seconds) else seconds


def _timing(latency_ms: float, samples: int) -> Timing:
    return Timing.of([latency_ms * 1e3] * samples, "perf_counter")
