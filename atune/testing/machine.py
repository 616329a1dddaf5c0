"""A `Machine` without processes that follows a script and counts calls, and the virtual time in which it works."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from atune.engine.interfaces import CompileHints, ignored
from atune.model.artifact import Lowered
from atune.model.candidate import BASELINE, Candidate, Config, config_key, space_hash
from atune.model.device import DeviceInfo, DeviceLimits, Target
from atune.model.folders import run_folder
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.model.space import Space
from atune.testing.script import FakeCompileWorker, FakeDeviceWorker, Script, Stage, symbol_of
from atune.workload.workload import Workload, WorkloadSpec, with_space

SETTLE = 24
"""Turns of the event loop without a new sleeper after which all tasks are assumed to wait for the clock."""


class FakeClock:
    """Virtual time, in seconds, that jumps to the next sleeper's end when all tasks wait.

    Sleepers wake one at a time, in the order of their ends, so that a script's order of events is always the same.
    `pace`: real seconds per virtual second; 0 for none. For one event loop at a time.
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
        """Sleep `seconds` of virtual time, forever if infinite."""
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
                    if sleeper in self._sleepers:  # woken to drive the clock, before its end
                        sleeper = self._renewed(sleeper)
                else:
                    await self._drive(sleeper)
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)
            if not self._driven and self._sleepers:
                self._sleepers[0][2].set()  # the next sleeper drives the clock from now on
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
                # A new sleeper may have joined; wake the earliest in any case.
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


def _kernel(**config: object) -> None:
    """Represent a kernel that takes any configuration."""


class FakeMachine:
    """A `Machine` that follows a `Script` and counts calls.

    Parameters
    ----------
    configs
        The space: configurations, their number (``{"x": 0}``, ``{"x": 1}``, …), or a `Space` without arguments.
    script
        The behaviour of each candidate.
    workers, devices
        Compile workers, and devices (``fake-0``, ``fake-1``, …).
    speeds
        Factor by which each device measures faster than the script; 1 for further devices.
    limits
        Hard limits of every device.
    clock
        A `FakeClock`; a new one by default.
    compile, benchmark
        Settings. Only the two deadlines have an effect.
    default
        Index of the default configuration, or a configuration that the space does not list: the baseline.
    refused
        Why the baseline must not win.
    no_default
        Why there is none.
    fingerprint, device_name, target
        Answers of `describe` and `discover`, for tests of a journal's comparison.
    """

    def __init__(
        self,
        configs: int | Sequence[Config] | Space = 8,
        script: Script | None = None,
        *,
        workers: int = 2,
        devices: int = 1,
        speeds: Sequence[float] = (),
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
        self._workload = Workload(_kernel, configs) if isinstance(configs, Space) else None
        self.configs: list[Config] = []
        if isinstance(configs, int):
            self.configs = [{"x": i} for i in range(configs)]
        elif not isinstance(configs, Space):
            self.configs = [dict(config) for config in configs]
        self.script = script or Script()
        self.target = Target("c") if target == "c" else Target("cuda", target)
        self.clock = clock
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self.default, self.refused, self.no_default = default, refused, no_default
        self.described = self.configs
        """The answer of `describe`. Tests of a changed space give it another order or number."""
        self.fingerprint = fingerprint or "fake"
        self.opened = self.closed = 0
        """Numbers of times that `open` was entered and left."""
        self.examined: list[int] = []
        """Candidates in whose code the parameters' roles were looked for."""
        self.elaborated: list[tuple[int, ...]] = []
        """Candidates of each call of `elaborate`, in the order of the starts."""
        self.lowered: list[int] = []
        """Candidates in the order in which lowering started."""
        self.groups: list[tuple[int, ...]] = []
        """Groups in the order in which building started. Includes failed ones."""
        self.compared: list[int] = []
        """Candidates in the order in which comparing their libraries with nvcc's started."""
        self.measured: defaultdict[str, list[int]] = defaultdict(list)
        """Candidates in the order in which measuring started, by device."""
        self.begun: Counter[int] = Counter()
        """Number of measurements started for each candidate, on any device."""
        self.best_known: list[float | None] = []
        """The best known latency given to each measurement, in the order of the starts."""
        self.finals: list[tuple[int, ...]] = []
        self.starts: Counter[str] = Counter()
        """Starts of each device's process. Includes failed ones."""
        self.cancelled: Counter[str] = Counter()
        """Cancelled calls, by stage."""
        self.most_at_once: Counter[str] = Counter()
        """Largest number of calls at the same time, by stage."""
        self._now_running: Counter[str] = Counter()
        self._given: dict[int, Config] = {}
        """Configurations of the candidates that workers were given, by index."""
        self._folder = Path()
        self._libraries = 0
        self._kills: Counter[int] = Counter()
        factors = [*speeds, *[1.0] * devices][:devices]
        self._compile_workers = [FakeCompileWorker(self, f"compile-{i}") for i in range(workers)]
        self._device_workers = [
            FakeDeviceWorker(self, DeviceInfo(f"fake-{i}", device_name, limits=limits or DeviceLimits()), speed)
            for i, speed in enumerate(factors)
        ]

    @asynccontextmanager
    async def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AsyncGenerator[None, None]:
        """Make the folder of the libraries. Remove it on leaving."""
        self.clock = self.clock or FakeClock()
        with run_folder() as folder:  # removed at the end, or by the next run if this program is killed
            self._folder = Path(folder)
            self.opened += 1
            try:
                yield
            finally:
                self.closed += 1

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        await anyio.lowlevel.checkpoint()
        spec = WorkloadSpec(
            name="fake",
            origin="",
            arguments={},
            configs=tuple(self.described),
            default=BASELINE if isinstance(self.default, dict) else self.default,
            baseline=self.default if isinstance(self.default, dict) else None,
            refused=self.refused,
            no_default=self.no_default,
            fingerprint=self.fingerprint,
            code=self.fingerprint,
            problem={},
            space=space_hash(map(config_key, self.described)),
        )
        if self._workload is not None:
            spec = with_space(spec, self._workload, seed)
            self.configs = list(spec.configs)
        return spec

    def config_of(self, index: int) -> Config:
        """Return the configuration of a candidate."""
        return self._given[index] if index in self._given else self.configs[index]

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        await anyio.lowlevel.checkpoint()
        return self.target, [worker.info for worker in self._device_workers]

    def compile_workers(self) -> list[FakeCompileWorker]:
        """Return the fake compile workers, as many as the machine was made with."""
        return self._compile_workers

    async def prepare(self, candidates: int) -> None:
        await anyio.lowlevel.checkpoint()

    def hints(self, measuring: int) -> CompileHints:
        return CompileHints()

    def device_workers(self) -> list[FakeDeviceWorker]:
        """Return the devices' workers, ``fake-0`` first."""
        return self._device_workers

    def versions(self) -> dict[str, str]:
        """Return the version of the fakes, for a run's header."""
        return {"fake": "1"}

    @property
    def running(self) -> int:
        """Number of calls under way."""
        return sum(self._now_running.values())

    async def take(self, seconds: float, limit_s: float = math.inf) -> bool:
        """Let virtual time pass. Returns false if `limit_s` is less than `seconds`."""
        assert self.clock is not None, "the machine is not open"
        await self.clock.sleep(min(seconds, limit_s))
        return seconds <= limit_s

    def killed(self, index: int, stage: Stage) -> bool:
        """Tell whether the compile worker with candidate `index` in `stage` is killed now, and count the kill."""
        where, times = self.script.kills.get(index, (stage, 0))
        if where != stage or self._kills[index] >= times:
            return False
        self._kills[index] += 1
        return True

    def new_library(self, group: Sequence[Lowered | Candidate]) -> str:
        """Write a library that represents its symbols' results as data. Return its path."""
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
