"""A `Machine` without processes: it follows a script, and counts."""

from __future__ import annotations

import math
import shutil
import warnings
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from atune.engine.interfaces import CompileHints
from atune.model.artifact import Lowered
from atune.model.candidate import Candidate, Config
from atune.model.device import DeviceInfo, DeviceLimits, Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.model.space import Space
from atune.system.folders import run_folder
from atune.testing.clock import FakeClock
from atune.testing.script import Script, Stage
from atune.testing.workers import FakeCompileWorker, FakeDeviceWorker, symbol_of
from atune.workload.listing import Candidates, listing
from atune.workload.workload import Workload, WorkloadSpec

MANY_LIBRARIES = 1000
"""Files beyond which they are removed in a thread."""


def _kernel(**config: object) -> None:
    """Stand for a kernel that takes any configuration."""


class FakeMachine:
    """A `Machine` that follows a `Script`, and counts.

    Parameters
    ----------
    configs
        The space: configurations, their number (``{"x": 0}``, ``{"x": 1}``, …), or a `Space` without arguments.
    script
        What each candidate does.
    workers, devices
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
    fingerprint, device_name, target
        What `describe` and `discover` tell, for tests of what a journal is compared by.
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
        default: int | None = None,
        fingerprint: str = "",
        device_name: str = "a fake device",
        target: str = "c",
        lanes: int | None = None,
    ) -> None:
        if lanes is not None:
            warnings.warn("FakeMachine's lanes are called workers now", DeprecationWarning, stacklevel=2)
            workers = lanes
        self._points = Candidates(Workload(_kernel, configs)) if isinstance(configs, Space) else None
        self.configs: list[Config] = []
        if isinstance(configs, int):
            self.configs = [{"x": i} for i in range(configs)]
        elif not isinstance(configs, Space):
            self.configs = [dict(config) for config in configs]
        self.script = script or Script()
        self.target = Target("c") if target == "c" else Target("cuda", target)
        self.clock = clock
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self.default = default
        self.looked_up: list[int] = []
        """Places of a large space, in the order in which they were asked for."""
        self.described = self.configs
        """The configurations as `describe` gives them; of another order or number for tests of a space that changed."""
        self.fingerprint = fingerprint or "fake"
        self.opened = self.closed = 0
        """How often `open` was entered, and left."""
        self.elaborated: list[tuple[int, ...]] = []
        """Candidates that were elaborated by one call, in the order in which that began."""
        self.lowered: list[int] = []
        """Candidates in the order in which their lowering began."""
        self.groups: list[tuple[int, ...]] = []
        """Groups in the order in which their building began, failed ones too."""
        self.build_exact: list[tuple[int, ...]] = []
        """Candidates that nvcc was asked to compile into one library, in the order in which that began."""
        self.proved: list[int] = []
        """Candidates in the order in which proving them began."""
        self.measured: defaultdict[str, list[int]] = defaultdict(list)
        """Candidates in the order in which their measuring began, by device."""
        self.begun: Counter[int] = Counter()
        """How often each candidate's measuring began, on any device."""
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
    async def open(self) -> AsyncGenerator[None, None]:
        """Make the folder of the libraries; on leaving, remove it."""
        self.clock = self.clock or FakeClock()
        with run_folder() as folder:  # gone at the end, and where this program is killed, with the next run
            self._folder = Path(folder)
            self.opened += 1
            try:
                yield
                if self._libraries > MANY_LIBRARIES:
                    await anyio.to_thread.run_sync(shutil.rmtree, folder)
            finally:
                self.closed += 1

    async def describe(self, *, whole: bool = False) -> WorkloadSpec:
        await anyio.lowlevel.checkpoint()
        spec = WorkloadSpec(
            name="fake",
            origin="",
            arguments={},
            configs=(),
            default=self.default,
            fingerprint=self.fingerprint,
            has_reference=self.script.reference_ms is not None,
            out_idx=(-1,),
        )
        if self._points is None:
            return msgspec.structs.replace(spec, configs=tuple(self.described))
        spec = spec.listing(listing(self._points.workload, whole=whole))
        self.configs = list(spec.configs)
        return spec

    async def look_up(self, places: Sequence[int]) -> list[Candidate | None]:
        await anyio.lowlevel.checkpoint()
        assert self._points is not None, "the space is listed"
        self.looked_up += places
        return [self._points.at(place) for place in places]

    def config_of(self, index: int) -> Config:
        """Return the configuration of a candidate."""
        if index in self._given:
            return self._given[index]
        if self._points is not None and not self.configs:
            return self._points.points.plain(index)
        return self.configs[index]

    def given(self, candidate: Candidate) -> None:
        """Remember the configuration of a candidate that a worker was given."""
        self._given[candidate.index] = candidate.config

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        await anyio.lowlevel.checkpoint()
        return self.target, [worker.info for worker in self._device_workers]

    def compile_workers(self, candidates: int | None = None) -> list[FakeCompileWorker]:
        return self._compile_workers

    def accelerators(self, candidates: int) -> tuple[tuple[str, ...], dict[str, str]]:
        return (("haste@1",), {}) if self.script.accelerated else ((), {"haste": "the script has none"})

    def hints(self, measuring: int) -> CompileHints:
        return CompileHints()

    def on_change(self, wake: Callable[[], None]) -> None:
        pass

    def on_warning(self, warn: Callable[[str], None]) -> None:
        pass

    def last_words(self) -> list[str]:
        return []

    def device_workers(self) -> list[FakeDeviceWorker]:
        """Return the devices' workers, ``fake-0`` first."""
        return self._device_workers

    def versions(self) -> dict[str, str]:
        """Return the version of the fakes, as a run's header has it."""
        return {"fake": "1"}

    fork_server = ""

    @property
    def running(self) -> int:
        """Calls that are under way."""
        return sum(self._now_running.values())

    async def take(self, seconds: float, limit_s: float = math.inf) -> bool:
        """Let virtual time pass; false where `limit_s` came first."""
        assert self.clock is not None, "the machine is not open"
        await self.clock.sleep(min(seconds, limit_s))
        return seconds <= limit_s

    def killed(self, index: int, stage: Stage) -> bool:
        """Tell whether the compile worker is killed now, which has candidate `index` in `stage`, and count it."""
        where, times = self.script.kills.get(index, (stage, 0))
        if where != stage or self._kills[index] >= times:
            return False
        self._kills[index] += 1
        return True

    def new_library(self, group: Sequence[Lowered | Candidate]) -> str:
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
