"""The stages on this machine: compile workers and device processes, forked from one server of our own."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from atune import errors
from atune.errors import RemoteError, WorkerError, WorkerLost, WorkerTimeout, WorkloadError, translated
from atune.local.compile_service import CompileService
from atune.local.compile_worker import COMPILE_NICE, LocalCompileLane
from atune.local.device_worker import LOAD_TIMEOUT_S, LocalDeviceLane, how_it_ended
from atune.model.device import DeviceInfo, Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.processes.background import background
from atune.processes.messages import Discovery, Session
from atune.processes.pool import ForkServer
from atune.processes.server import ServerProcess, parked, surroundings
from atune.processes.worker import Worker
from atune.storage.artifact_store import ArtifactStore
from atune.system.cores import WORKER_BYTES, usable_cores, usable_memory_bytes, workers_that_fit
from atune.system.folders import made_folder, run_folder, server_folder
from atune.version import __version__
from atune.workload.workload import FileRef, WorkloadRef, WorkloadSpec

__all__ = ["LocalBackend", "LocalCompileLane", "LocalDeviceLane", "run_folder", "server_folder"]

T = TypeVar("T")

PRELOAD = (
    "torch", "tilelang",
    "tilelang.language", "tilelang.engine.lower", "tilelang.backend.module",
    "atune.stages.compile.lowering", "atune.stages.compile.codegen", "atune.stages.measure.benchmark",
)  # fmt: skip
NEIGHBOURS = 2
"""Candidates in a row for one worker: those that differ in the order of their blocks are lowered once."""
SERVER_ENV = {
    "TILELANG_DISABLE_CACHE": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # tilelang's import asks torch whether CUDA is there. Asking the driver would start it in the server,
    # and then no fork of the server could use it; NVML can be asked without that.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
_HUGE_PAGES = "glibc.malloc.hugetlb"
"""glibc's tunable that has malloc ask for transparent huge pages: lowering, which allocates a lot of small things,
took 6 to 15 % less time with them."""


VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


def installed_versions() -> dict[str, str]:
    """Return the versions of atune and of what decides its results: those at the first call, as modules stay too."""
    return dict(_installed_versions())


@functools.cache
def _installed_versions() -> dict[str, str]:
    found = {"atune": __version__}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class LocalBackend:
    """Compile lanes and device lanes of one run, as processes on this machine.

    `workload` is a reference that the workers can load; `spec`, when the caller has it already, spares loading it
    once more. `target` is a text, such as ``auto`` or ``cuda``; `devices` names devices, or is ``("all",)``.
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
    ) -> None:
        self.workload, self.spec = workload, spec
        self.target_text, self.device_names = target, tuple(devices)
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self.server: ForkServer
        self.service = CompileService(self, COMPILE_NICE)
        self.store: ArtifactStore | None = None
        self.background: TaskGroup | None = None
        """Where processes that stand by are started; None before `open`."""
        self.warn: Callable[[str], None] = lambda message: None
        self.run_dir = ""
        self.run_env: dict[str, str] = {}
        self._target: Target | None = None
        self._devices: list[DeviceInfo] = []
        self._remarks: list[str] = []
        """What compiling does otherwise than the user may expect, and why; known once the lanes are."""
        self._cores_left: int | None = None
        """Cores that no compile worker has; None where none is to be kept free for measuring."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Start the fork server, or take the one that the run before left warm; kill every worker on leaving.

        A run that ends well leaves the server, with tilelang imported, to the next one; see `atune.shutdown`.
        """
        with run_folder() as run_dir:
            self.run_dir = run_dir
            self.run_env = {
                "TMPDIR": made_folder(run_dir, "tmp"),
                "TILELANG_CACHE_DIR": made_folder(run_dir, "tilelang"),
                "TILELANG_TMP_DIR": made_folder(run_dir, "tilelang", "tmp"),
                **({"TILELANG_VERBOSE": "1"} if self.compile.verbose else {}),
            }
            kind = (PRELOAD, *surroundings())
            process = parked.take(kind) or ServerProcess(PRELOAD, *server_folder(), env=self.server_env)
            async with (
                ForkServer(
                    process=process,
                    park=functools.partial(parked.park, kind),
                ) as self.server,
                self.service,
                background() as self.background,
            ):
                self.service.start(early=self.server.preload_s is None)  # while it imports, on one core alone
                self.store = store = ArtifactStore() if self.compile.store else None
                try:
                    yield
                finally:
                    if store is not None:
                        store.close()
            if store is not None:  # not after an error or a cancellation, which must not wait
                await anyio.to_thread.run_sync(store.evict)

    async def spawn(
        self, lane: str, *, env: Mapping[str, str] | None = None, cpus: Sequence[int] | None = None, nice: int = 0
    ) -> Worker:
        """Fork a worker of this run."""
        return await self.server.spawn(lane, env={**self.run_env, **(env or {})}, cpus=cpus, nice=nice)

    async def describe(self) -> WorkloadSpec:
        if self.spec is None:
            payload = msgspec.msgpack.encode(self.workload)
            reply = await self._ask_once("describe", "atune.stages.session.session:describe_workload", payload)
            self.spec = msgspec.msgpack.decode(reply, type=WorkloadSpec)
        return self.spec

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        payload = msgspec.msgpack.encode((self.target_text, self.device_names, self.benchmark.mixed_devices))
        known = self.server.facts  # of the same process: devices do not come and go
        reply = known.get(payload) or await self._ask_once("discover", "atune.stages.session.session:discover", payload)
        known[payload] = reply
        found = msgspec.msgpack.decode(reply, type=Discovery)
        self._target, devices = found.target, list(found.devices)
        if self._target.kind == "c" and self.compile.backend == "tvm_ffi":
            raise errors.TargetError("backend tvm_ffi does not support target c: use --backend auto or cython")
        if self._target.kind == "c" and self.compile.backend == "nvrtc":
            raise errors.TargetError("backend nvrtc compiles CUDA code: use --backend auto or cython with target c")
        if self.compile.backend == "nvrtc" and not found.cuda_python:
            raise errors.TargetError(
                "backend nvrtc needs the package cuda-python (pip install cuda-python); or use --backend auto"
            )
        method = self.benchmark.method
        if method != "auto" and (method == "perf_counter") != (self._target.kind == "c"):
            fitting = "'perf_counter'" if self._target.kind == "c" else "'events', 'cuda_graph' or 'cupti'"
            raise errors.TargetError(f"method {method!r} does not time target {self._target.kind}: use {fitting}")
        self._devices = devices
        return self._target, devices

    def compile_lanes(self, candidates: int | None = None) -> list[LocalCompileLane]:
        """One lane a core, and no more than memory has room for; `CompileSettings.workers` says otherwise.

        Where kernels run on the CPU, the last core is the device's alone. A GPU's process needs a core while it
        measures, and `resting` keeps one free for it then.
        """
        cores = usable_cores()
        most = len(cores) - len(self._devices) if self._on_cpu else len(cores)
        memory = usable_memory_bytes()
        n = self.compile.workers or workers_that_fit(max(1, most), memory)
        self._remarks = []
        if self.compile.workers is None and memory is not None and n < most:
            room = f"{memory / (1 << 30):.1f} GiB are free, and each is given {WORKER_BYTES >> 30} GiB"
            self._remarks.append(f"{n} compile workers on {most} cores: {room}; CompileSettings(workers=…) decides")
        if self.alone:
            self._remarks.append(
                f"backend {self.alone} compiles each candidate alone: tilelang's adapter for it makes one library a "
                "kernel; backend auto (tvm_ffi) compiles candidates in groups"
            )
        self._cores_left = len(cores) - n if self.compile.workers is None and not self._on_cpu else None
        cpus = cores[:-1] if self._on_cpu and len(cores) > 1 else None
        self.service.expect(candidates, n)
        return [LocalCompileLane(self, f"compile-{i}", cpus) for i in range(n)]

    def device_lanes(self) -> list[LocalDeviceLane]:
        # A kernel that runs on the CPU is timed on a core of its own, which no compiler may use.
        cores = usable_cores()
        cpus = cores[-1:] if self._on_cpu else None
        return [LocalDeviceLane(self, info, cpus) for info in self._devices]

    @property
    def server_env(self) -> dict[str, str]:
        """What the processes' environment has beside the caller's. A choice of the caller's own stays."""
        tunables = os.environ.get("GLIBC_TUNABLES", "")
        if _HUGE_PAGES in tunables:
            return SERVER_ENV
        return {**SERVER_ENV, "GLIBC_TUNABLES": ":".join(filter(None, (tunables, f"{_HUGE_PAGES}=1")))}

    def versions(self) -> dict[str, str]:
        return installed_versions()

    @property
    def alone(self) -> str:
        """tilelang's adapter for CUDA whose kernels cannot share a library; empty for the one whose can."""
        return self.compile.backend if not self._on_cpu and self.compile.backend in ("cython", "nvrtc") else ""

    @property
    def in_a_row(self) -> int:
        return 1 if self._on_cpu else NEIGHBOURS

    def hold_builds(self) -> tuple[bool, bool]:
        return self.service.warming, self.service.warming and self.service.soon

    def sharing(self) -> bool:
        return bool(self.service.compiler) or self.service.warming

    def resting(self, measuring: int) -> int:
        return 0 if self._cores_left is None else max(0, measuring - self._cores_left)

    def on_change(self, wake: Callable[[], None]) -> None:
        self.service.wake = wake

    def on_warning(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        for remark in self._remarks:
            warn(remark)

    @property
    def target(self) -> Target:
        assert self._target is not None, "discover() comes first"
        return self._target

    @property
    def _on_cpu(self) -> bool:
        return self.target.kind == "c"

    async def session(self, worker: Worker, device: str = "") -> None:
        """Tell a new worker what it works on."""
        session = Session(self.workload, self.target, self.compile, self.benchmark, self.run_dir, device)
        await worker.call("atune.stages.session.session:begin", msgspec.msgpack.encode(session), LOAD_TIMEOUT_S)

    async def _ask_once(self, lane: str, entry: str, payload: bytes) -> bytes:
        """Ask a worker that is killed afterwards: the user's code may have started anything in it."""
        return await self._again_if_killed(lambda: self._ask(lane, entry, payload))

    async def _ask(self, lane: str, entry: str, payload: bytes) -> bytes:
        worker = await self.spawn(lane)
        try:
            reply = await worker.call(entry, payload, LOAD_TIMEOUT_S)
        except BaseException:
            await worker.kill()
            raise
        if self.background is None:
            await worker.kill()
        else:
            self.background.start_soon(worker.kill)  # nobody waits until it is reaped
        return reply

    async def loaded(self, lane: str, *, cpus: Sequence[int] | None = None, nice: int = 0) -> Worker:
        """Fork a worker that knows the session and has the workload loaded, which no candidate's deadline covers."""

        async def load() -> Worker:
            worker = await self.spawn(lane, cpus=cpus, nice=nice)
            try:
                await self.session(worker)
                await worker.call("atune.stages.session.session:load_workload", b"", LOAD_TIMEOUT_S)
            except WorkerError:
                await worker.kill()
                raise
            return worker

        return await self._again_if_killed(load)

    async def _again_if_killed(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Load the workload by `ask`, and once more where its process got SIGKILL, which comes from outside.

        Raises `WorkloadError` for what the workload's code does to a process, and `WorkerError` the second time that
        one was killed.
        """
        what = self.workload.origin if isinstance(self.workload, FileRef) else "the workload"
        for last in (False, True):
            try:
                return await ask()
            except RemoteError as error:
                raise translated(error) from error
            except WorkerLost as error:
                if "SIGKILL" not in str(error):
                    raise WorkloadError(f"loading {what} failed: {error}\n{error.detail}".strip()) from error
                if last:
                    message = f"the worker that loads {what} was lost twice: {how_it_ended(error)}"
                    raise WorkerError(message, error.detail) from error
            except WorkerTimeout as error:
                raise WorkloadError(f"loading {what} failed: {error}\n{error.detail}".strip()) from error
        raise AssertionError("the second loss raises")
