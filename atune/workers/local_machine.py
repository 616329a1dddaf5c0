"""The compile workers and device workers of a run on this machine, whose processes come from one fork server."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

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
from atune.workers.compile_worker import LocalCompileWorker
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
"""Largest number of candidates for which a run uses nvcc if its compiler state is new. With cicc, the run would wait
for the comparison of cicc's code with nvcc's code. On an H100 with 16 workers, runs of 8 candidates in a new state took
1.08 times as long with cicc as with nvcc (bench/results/states)."""


@dataclass(frozen=True)
class Shared:
    """The processes that concurrent runs share, for example the runs of a set."""

    server: ForkServer
    service: ServiceProcess
    at_once: int = 1
    """Largest number of concurrent runs on a device."""
    apart: bool = False
    """Whether each run uses a single device instead of all devices."""
    idle: dict[str, list[Worker]] = field(default_factory=dict)
    """Processes that ended runs leave to later runs, by device and torch's state. Creating a new context would take a
    second."""
    runs: Counter[str] = field(default_factory=Counter)
    """Number of runs that use each device."""
    lost: set[str] = field(default_factory=set)
    """Devices that a run gave up on. Later runs use these devices only if no other devices are left."""

    @contextmanager
    def lent(self, devices: Sequence[DeviceInfo]) -> Iterator[tuple[DeviceInfo, ...]]:
        """Choose all devices for a run, or the least used device if runs are `apart`, and count the run as a user of
        these devices."""
        left = [device for device in devices if device.id not in self.lost] or devices
        chosen = tuple(sorted(left, key=lambda device: self.runs[device.id])[: 1 if self.apart else None])
        self.runs.update(device.id for device in chosen)
        try:
            yield chosen
        finally:
            self.runs.subtract(device.id for device in chosen)


@asynccontextmanager
async def shared_processes(warn: Callable[[str], None] = ignored) -> AsyncGenerator[Shared, None]:
    """Start the fork server, or take the warm one, for one run or for several in the same event loop."""
    async with fork_server(warn) as server, ServiceProcess() as service:
        shared = Shared(server, service)
        try:
            yield shared
        finally:
            await killed(chain.from_iterable(shared.idle.values()))


class LocalMachine:
    """The compile workers and device workers of one run, as processes on this machine.

    `workload`: a reference that the workers can load. `spec`: the workload's description, if the caller has it. Then
    `describe` loads nothing, or only the space if `spec` lacks the space. `target`: a `Target`, or a text such as
    ``auto`` or ``cuda``. `devices`: names of devices, or ``("all",)``. `cores`: how many of this process's cores the
    run may use. `shared`: the processes that concurrent runs share; None if the run starts its own processes.
    """

    sleep = staticmethod(anyio.sleep)

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
        self.workers = Workers(workload, spec.fingerprint if spec is not None else "")
        self.service = CompileService(self.compile, target)
        self.store = RunStore()
        self.run_dir = ""
        self.discovery: Discovery
        """The run's target and devices. `discover` or `assume` sets this attribute."""
        self._devices: list[LocalDeviceWorker] = []
        self._cores_left: int | None = None
        """Number of cores that have no compile worker; None if measuring needs no free core."""

    @asynccontextmanager
    async def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AsyncGenerator[None, None]:
        """Start the fork server, or take the warm fork server of the previous run. On leaving, kill every worker.

        If the run was not cancelled, the fork server stays warm for the next run; see `atune.shutdown`.
        """
        self.service.wake = wake
        with run_folder() as self.run_dir, ExitStack() as self._ended:
            if os.statvfs(self.run_dir).f_flag & os.ST_NOEXEC:
                why = f"TMPDIR ({tempfile.gettempdir()}) is mounted noexec, so libraries are loaded from memory"
                warn(f"{why}. If they fail to load, set TMPDIR to a folder on another file system")
            own = shared_processes(lambda message: self.workers.warn(message))
            async with nullcontext(self.shared) if self.shared else own as shared, background() as tasks:
                self.workers.attach(shared.server, self.run_dir, tasks, warn)
                self.service.start(shared.service, tasks, self.run_dir)
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
            # After an error or a cancellation, which must not wait, the rest is skipped.
            if store is not None:
                await anyio.to_thread.run_sync(store.evict)
            await anyio.to_thread.run_sync(partial(shutil.rmtree, self.run_dir, ignore_errors=True))

    async def _put_aside(self, workload: WorkloadRef) -> WorkloadRef:
        """Return `workload`. If the workload is large and the disk has room, move the workload into a file that all
        workers map."""
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
            described_here = self.spec is not None
            self.spec = await described(self.workers, self._sent, self.spec, seed)
            if not described_here:
                self.workers.loaded_as = self.spec.fingerprint
        return self.spec

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        question = msgspec.msgpack.encode((self.target_text, self.device_names, self.compile))
        known = self.workers.server.process.facts  # valid for the whole process, because devices do not come and go
        reply = known.get(question) or await self.workers.ask_once("discover", DISCOVER, question)
        known[question] = reply
        discovery = msgspec.msgpack.decode(reply, type=Discovery)
        devices = tuple(map(with_peaks, discovery.devices))
        if self.shared is not None:
            devices = self._ended.enter_context(self.shared.lent(devices))
        self.discovery = discovery = msgspec.structs.replace(discovery, devices=devices)
        if self._most_cores is None:  # on a node of a cluster, the cluster's machine gives these warnings
            for remark in filter(None, (discovery.untested, discovery.fallback)):
                self.workers.warn(remark)
        self.use(discovery.no_cicc)
        return discovery.target, list(discovery.devices)

    async def assume(self, device: DeviceInfo | None) -> Target:
        """Use `device`, by default the first GPU or the CPU, in a run that builds nothing and does not call
        `discover`."""
        if device is None:
            reply = await self.workers.ask_once("gpus", GPUS, b"")
            device = next(iter(msgspec.msgpack.decode(reply, type=list[DeviceInfo])), None)
        target = Target("c") if device is None else Target("cuda", device.arch)
        self.discovery = Discovery(target, () if device is None else (device,))
        return target

    async def prepare(self, candidates: int) -> None:
        self.service.few = self.shared is None and candidates <= FEW_CANDIDATES  # a set shares the comparison

    def use(self, no_cicc: str) -> None:
        """Compile with cicc if `no_cicc` is empty. Otherwise `no_cicc` is the reason to compile without cicc."""
        self.service.use("" if self._on_cpu else no_cicc or None)
        self.store.tools = "" if no_cicc else self.discovery.tools

    def compile_workers(self) -> list[LocalCompileWorker]:
        """Return one worker for each core, or fewer if memory is short. `CompileSettings.workers` overrides the number.

        Workers are not pinned to cores, because other runs on this machine also have workers. The process of a device
        takes precedence because of its niceness. While the process of a GPU measures, it needs a core, so `hints` keeps
        a core free.
        """
        n, limited = self.most_workers()
        if limited:
            self.workers.warn_once("workers", limited)
        self._cores_left = len(self._cores) - n if self.compile.workers is None and not self._on_cpu else None
        parts = self.workers, self._session(), self.store, self.service
        return [LocalCompileWorker(*parts, f"compile-{i}") for i in range(n)]

    def most_workers(self) -> tuple[int, str]:
        """Return the number of compile workers, and a warning if too little memory is free for one worker per core."""
        cores, memory = len(self._cores), usable_memory_bytes()
        # On a node of a cluster no worker rests while a device measures (see `hints`), so cores stay free throughout.
        devices_apart = self._on_cpu or self._most_cores is not None
        most = max(1, cores - len(self.discovery.devices) if devices_apart else cores)
        n = self.compile.workers or workers_that_fit(most, memory)
        if self.compile.workers is not None or memory is None or n >= most:
            return n, ""
        room = f"{memory / (1 << 30):.1f} GiB of memory are free, and each worker gets {WORKER_BYTES >> 30} GiB"
        return n, f"{n} compile workers on {most} cores, because {room}. CompileSettings(workers=…) overrides this"

    def device_workers(self) -> list[LocalDeviceWorker]:
        # All kernels on the CPU are timed on the same core, because cores may differ in speed.
        cpus = self._cores[-1:] if self._on_cpu else None
        session, limit, claim = self._session(), self.benchmark.memory_limit, None
        if limit is not None and self._on_cpu:
            self.workers.warn("memory_limit has no effect: it applies only to GPUs, and the kernels run on the CPU")
        elif limit is not None:
            share, devices = int(limit) // (self.shared.at_once if self.shared else 1), self.discovery.devices
            session = msgspec.structs.replace(session, memory_bytes=share)
            claim = MemoryClaim([device.uuid or device.id for device in devices], share, int(limit))
            self._ended.callback(claim.release)
        self._devices = []
        for info in self.discovery.devices:
            idle = self.shared.idle.setdefault(f"{info.id} {self.workload.torch}", []) if self.shared else None
            self._devices.append(LocalDeviceWorker(self.workers, session, info, cpus, idle=idle, claim=claim))
        return self._devices

    def _session(self) -> Session:
        return Session(
            ref=self._sent,
            target=self.discovery.target,
            compile=self.compile,
            benchmark=self.benchmark,
            run_dir=self.run_dir,
            tools=self.store.tools,
        )

    def versions(self) -> dict[str, str]:
        return installed_versions()

    def hints(self, measuring: int) -> CompileHints:
        resting = 0 if self._cores_left is None else max(0, measuring - self._cores_left)
        builds = not self.service.warming
        return msgspec.structs.replace(compile_hints(self.discovery), builds=builds, resting=resting)

    @property
    def _cores(self) -> list[int]:
        return usable_cores()[: self._most_cores]

    @property
    def _on_cpu(self) -> bool:
        return self.discovery.target.kind == "c"


def compile_hints(discovery: Discovery) -> CompileHints:
    """Return the scheduler's hints that are the same on one machine and on a cluster."""
    return CompileHints(alike=COMMON_FAILURES if discovery.fallback else 0)
