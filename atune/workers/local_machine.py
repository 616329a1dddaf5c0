"""The stages on this machine: compile workers and device processes, forked from one fork server."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from atune.engine.interfaces import CompileHints, ignored
from atune.model.artifact import COMMON_FAILURES
from atune.model.device import DeviceInfo, Target, with_peaks
from atune.model.folders import run_folder, untrusted
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.version import installed_versions
from atune.workers.artifact_store import ArtifactStore, RunStore
from atune.workers.compile_service import CompileService, ServiceProcess
from atune.workers.compile_worker import COMPILE_NICE, LocalCompileWorker
from atune.workers.device_worker import LocalDeviceWorker, MemoryClaim
from atune.workers.messages import DISCOVER, GPUS, Discovery, Session
from atune.workers.pool import ForkServer, Worker
from atune.workers.resources import WORKER_BYTES, usable_cores, usable_memory_bytes, workers_that_fit
from atune.workers.waiting import background
from atune.workers.workers import Workers, described, fork_server, killed
from atune.workload.packing import LARGE_BYTES, write
from atune.workload.pickling import PickleRef, WorkloadRef
from atune.workload.workload import WorkloadSpec

FEW_CANDIDATES = 4
"""Up to so many candidates nvcc compiles all: parsing headers once, for cicc, takes as long. On an H100 with 16 workers
runs of 8 candidates ended 0.91 times as late with cicc as with nvcc, and 1.08 times where the compiler state was new;
runs of 15 candidates 0.70 times (bench/results/states)."""
WHY_PLAIN = "with so few candidates each is compiled plain"
"""The reason for not using cicc."""


@dataclass(frozen=True)
class Shared:
    """The processes that runs at the same time share, such as those of a set."""

    server: ForkServer
    service: ServiceProcess
    at_once: int
    """How many runs take place at the same time, at most."""
    idle: dict[str, list[Worker]] = field(default_factory=dict)
    """Processes of each device, and state of torch, whose run has ended, for the next: a context takes a second."""


@asynccontextmanager
async def shared_processes(warn: Callable[[str], None] = ignored, at_once: int = 1) -> AsyncGenerator[Shared, None]:
    """Start the fork server, or take the warm one, for one run, or for several in one event loop."""
    async with fork_server(warn) as server, ServiceProcess(COMPILE_NICE) as service:
        shared = Shared(server, service, at_once)
        try:
            yield shared
        finally:
            await killed(chain.from_iterable(shared.idle.values()))


class LocalMachine:
    """Compile workers and device workers of one run, as processes on this machine.

    `workload` is a reference that the workers can load. `spec` is its description if the caller has it, which saves
    a worker from loading it. If `spec` lacks the space, only the space is loaded. `target` is a text, such as
    ``auto`` or ``cuda``. `devices` names devices, or is ``("all",)``. `cores`: how many it uses at most, of those this
    process may use. `shared`: the processes of runs that take place at the same time; None for some of its own.
    """

    def __init__(
        self,
        workload: WorkloadRef,
        *,
        spec: WorkloadSpec | None = None,
        target: str | Target = "auto",
        devices: Sequence[str] = ("all",),
        compile: CompileSettings | None = None,
        benchmark: BenchmarkSettings | None = None,
        cores: int | None = None,
        shared: Shared | None = None,
    ) -> None:
        self._most_cores, self.shared = cores, shared
        self.workload, self.spec = workload, spec
        self._sent = workload
        """The reference that workers load."""
        self.target_text, self.device_names = target, tuple(devices)
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self.server: ForkServer
        self.workers = Workers(workload, spec.fingerprint if spec is not None else "")
        self.service = CompileService(self.compile, target)
        self.store = RunStore()
        self.run_dir = ""
        self.found: Discovery
        """The answer of `discover`."""
        self._devices: list[LocalDeviceWorker] = []
        self._cores_left: int | None = None
        """Cores without a compile worker. None if measuring needs no free core."""

    @asynccontextmanager
    async def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AsyncGenerator[None, None]:
        """Start the fork server, or take the warm one that the previous run left. Kill every worker on leaving.

        Unless it is cancelled, a run leaves the server, with tilelang imported, to the next one; see `atune.shutdown`.
        """
        self.service.wake = wake
        with run_folder() as self.run_dir, ExitStack() as self._ended:
            if os.statvfs(self.run_dir).f_flag & os.ST_NOEXEC:
                why = f"TMPDIR ({tempfile.gettempdir()}) is mounted noexec, so libraries are loaded from memory"
                warn(f"{why}. If they fail to load, set TMPDIR to a folder on another file system")
            own = shared_processes(lambda message: self.workers.warn(message))
            async with nullcontext(self.shared) if self.shared else own as shared, background() as tasks:
                self.server = shared.server
                self.workers.attach(self.server, self.run_dir, tasks, warn)
                early = self.shared is not None or self.server.process.preload_s is None  # importing uses only one core
                self.service.start(shared.service, tasks, self.run_dir, early=early)
                store = ArtifactStore() if self.compile.store else None
                if store is not None and (why := untrusted(store.folder)):
                    store = None
                    warn(why)
                self.store = RunStore(store, partial(self.workers.warn_once, "store"))
                tasks.start_soon(partial(anyio.to_thread.run_sync, installed_versions, abandon_on_cancel=True))
                try:
                    self._sent = await self._put_aside(self.workload)
                    yield
                    for device in self._devices:
                        await device.hand_on()
                finally:
                    self.workers.warn = ignored  # the run has ended and records no more events
                    if self.shared is not None:
                        await self.workers.end()
            # Skipped after an error or a cancellation, which must not wait.
            if store is not None:
                await anyio.to_thread.run_sync(store.evict)
            await anyio.to_thread.run_sync(partial(shutil.rmtree, self.run_dir, ignore_errors=True))

    async def _put_aside(self, workload: WorkloadRef) -> WorkloadRef:
        """Put a large `workload` into a file that all workers map. If it is small or the disk is full, return it."""
        if not isinstance(workload, PickleRef) or workload.packed.size < LARGE_BYTES:
            return workload
        path = os.path.join(self.run_dir, "workload.pickle")
        try:
            packed = await anyio.to_thread.run_sync(write, workload.packed, path, abandon_on_cancel=True)
        except OSError:
            Path(path).unlink(missing_ok=True)
            return workload
        return msgspec.structs.replace(workload, packed=packed)

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        if self.spec is None or not self.spec.configs:
            known = self.spec is not None  # the program described it
            self.spec = await described(self.workers, self._sent, self.spec, seed)
            if not known:
                self.workers.loaded_as = self.spec.fingerprint
        return self.spec

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        asked = (self.target_text, self.device_names, self.compile)
        question = msgspec.msgpack.encode(asked)
        known = self.server.process.facts  # valid for the process, because devices do not come and go
        reply = known.get(question) or await self.workers.ask_once("discover", DISCOVER, question)
        known[question] = reply
        found = msgspec.msgpack.decode(reply, type=Discovery)
        found = msgspec.structs.replace(found, devices=tuple(map(with_peaks, found.devices)))
        self.found = found
        if self._most_cores is None:  # an agent's are told by the machine of the cluster
            for remark in filter(None, (found.untested, found.fallback)):
                self.workers.warn(remark)
        self.use(found.no_cicc)
        return found.target, list(found.devices)

    async def assume(self, device: DeviceInfo | None) -> Target:
        """Take `device` in place of `discover`, where nothing is built. None: the first GPU here, or else the CPU."""
        if device is None:
            reply = await self.workers.ask_once("gpus", GPUS, b"")
            device = next(iter(msgspec.msgpack.decode(reply, type=list[DeviceInfo])), None)
        target = Target("c") if device is None else Target("cuda", device.arch)
        self.found = Discovery(target, () if device is None else (device,))
        return target

    async def prepare(self, candidates: int) -> None:
        few = self.shared is None and candidates <= FEW_CANDIDATES  # a set shares what is parsed
        self.use(WHY_PLAIN if few else self.found.no_cicc)

    def use(self, no_cicc: str) -> None:
        """Compile by cicc, unless there is a reason against it."""
        self.service.use("" if self._on_cpu else no_cicc or None)
        self.store.tools = "" if no_cicc else self.found.tools

    def compile_workers(self) -> list[LocalCompileWorker]:
        """Return one worker per core, or as many as fit into memory. `CompileSettings.workers` overrides this.

        Any core may run them, because other runs on this machine have workers, too. A device's process takes precedence
        by its niceness. A GPU's needs a core while it measures, and `hints` keep one free for that time.
        """
        n, limited = self.most_workers()
        if limited:
            self.workers.warn_once("workers", limited)
        self._cores_left = len(self._cores) - n if self.compile.workers is None and not self._on_cpu else None
        given = self.workers, self._session(), self.store, self.service
        return [LocalCompileWorker(*given, f"compile-{i}") for i in range(n)]

    def most_workers(self) -> tuple[int, str]:
        """Return the number of compile workers, and a warning if memory limits it."""
        cores, memory = len(self._cores), usable_memory_bytes()
        devices_apart = self._on_cpu or self._most_cores is not None  # an agent's engine rests no workers: see `hints`
        most = max(1, cores - len(self.found.devices) if devices_apart else cores)
        n = self.compile.workers or workers_that_fit(most, memory)
        if self.compile.workers is not None or memory is None or n >= most:
            return n, ""
        room = f"{memory / (1 << 30):.1f} GiB are free, with {WORKER_BYTES >> 30} GiB set aside for each"
        return n, f"{n} compile workers on {most} cores: {room}; CompileSettings(workers=…) decides"

    def device_workers(self) -> list[LocalDeviceWorker]:
        # All kernels on the CPU are timed on the same core, which may differ from others.
        cpus = self._cores[-1:] if self._on_cpu else None
        session, limit, claim = self._session(), self.benchmark.memory_limit, None
        if limit is not None and self._on_cpu:
            self.workers.warn("memory_limit holds for GPUs alone, and the kernels run on the CPU")
        elif limit is not None:
            mine, devices = int(limit) // (self.shared.at_once if self.shared else 1), self.found.devices
            session = msgspec.structs.replace(session, memory_bytes=mine)
            claim = MemoryClaim([one.uuid or one.id for one in devices], mine, int(limit))
            self._ended.callback(claim.release)
        self._devices = []
        for one in self.found.devices:
            idle = self.shared.idle.setdefault(f"{one.id} {self.workload.torch}", []) if self.shared else None
            self._devices.append(LocalDeviceWorker(self.workers, session, one, cpus, idle=idle, claim=claim))
        return self._devices

    def _session(self) -> Session:
        return Session(
            ref=self._sent,
            target=self.found.target,
            compile=self.compile,
            benchmark=self.benchmark,
            run_dir=self.run_dir,
            tools=self.store.tools,
        )

    def versions(self) -> dict[str, str]:
        return installed_versions()

    def hints(self, measuring: int) -> CompileHints:
        resting = 0 if self._cores_left is None else max(0, measuring - self._cores_left)
        builds: Literal["all", "first", "none"] = "all"
        if self.service.warming:  # for long only where nothing is parsed yet
            builds = "none" if self.service.process.parsed else "first"
        return msgspec.structs.replace(compile_hints(self.found), builds=builds, resting=resting)

    @property
    def _cores(self) -> list[int]:
        return usable_cores()[: self._most_cores]

    @property
    def _on_cpu(self) -> bool:
        return self.found.target.kind == "c"


def compile_hints(found: Discovery) -> CompileHints:
    """Return what the target says to the scheduler, on one machine or on several."""
    return CompileHints(alike=COMMON_FAILURES if found.fallback else 0)
