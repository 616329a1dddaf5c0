"""The stages on this machine: compile workers and device processes, forked from one server of our own."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import metadata

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from atune import errors
from atune.artifact import Artifact, Built, Failure, FailureKind, Lowered
from atune.backend import GroupFailed
from atune.background import background
from atune.candidate import Candidate
from atune.cores import usable_cores, usable_memory_bytes, workers_that_fit
from atune.device import DeviceInfo, Target
from atune.errors import RemoteError, WorkerLost, WorkerTimeout, WorkloadError, translated
from atune.folders import run_folder, server_folder
from atune.local_device import LOAD_TIMEOUT_S, LocalDeviceLane, how_it_ended
from atune.nvrtc_service import NvrtcService
from atune.pool import ForkServer, Worker
from atune.protocol import BuildJob, Discovery, Session
from atune.server_process import ServerProcess, parked
from atune.settings import BenchmarkSettings, CompileSettings
from atune.store import ArtifactStore
from atune.version import __version__
from atune.workload import FileRef, WorkloadRef, WorkloadSpec

__all__ = ["LocalBackend", "LocalCompileLane", "LocalDeviceLane", "run_folder", "server_folder"]

PRELOAD = (
    "torch", "tilelang", "tilelang.language", "tilelang.engine.lower", "tilelang.backend.module",
    "atune.stages.lowering", "atune.stages.codegen", "atune.stages.benchmark",
)  # fmt: skip
COMPILE_NICE = 5
"""Niceness of the compile workers: the user's own programs, and the measuring processes, go first."""
SERVER_ENV = {
    "TILELANG_DISABLE_CACHE": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # tilelang's import asks torch whether CUDA is there. Asking the driver would start it in the server,
    # and then no fork of the server could use it; NVML can be asked without that.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


def installed_versions() -> dict[str, str]:
    """Return the versions of atune and of what decides its results."""
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
        self.nvrtc = NvrtcService(self, COMPILE_NICE)
        self.store: ArtifactStore | None = None
        self.background: TaskGroup | None = None
        """Where processes that stand by are started; None before `open`."""
        self.warn: Callable[[str], None] = lambda message: None
        self.run_dir = ""
        self.run_env: dict[str, str] = {}
        self._target: Target | None = None
        self._devices: list[DeviceInfo] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Start the fork server, or take the one that the run before left warm; kill every worker on leaving.

        A run that ends well leaves the server, with tilelang imported, to the next one; see `atune.shutdown`.
        """
        with run_folder() as run_dir:
            self.run_dir = run_dir
            self.run_env = {
                "TMPDIR": _made(run_dir, "tmp"),
                "TILELANG_CACHE_DIR": _made(run_dir, "tilelang"),
                "TILELANG_TMP_DIR": _made(run_dir, "tilelang", "tmp"),
            }
            kind = (PRELOAD, tuple(sorted(os.environ.items())), os.getcwd())
            process = parked.take(kind) or ServerProcess(PRELOAD, *server_folder(), env=SERVER_ENV)
            async with (
                ForkServer(
                    process=process,
                    park=functools.partial(parked.park, kind),
                ) as self.server,
                self.nvrtc,
                background() as self.background,
            ):
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
            reply = await self._ask_once("describe", "atune.stages.session:describe_workload", payload)
            self.spec = msgspec.msgpack.decode(reply, type=WorkloadSpec)
        return self.spec

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        payload = msgspec.msgpack.encode((self.target_text, self.device_names, self.benchmark.mixed_devices))
        known = self.server.facts  # of the same process: devices do not come and go
        reply = known.get(payload) or await self._ask_once("discover", "atune.stages.session:discover", payload)
        known[payload] = reply
        found = msgspec.msgpack.decode(reply, type=Discovery)
        self._target, devices = found.target, list(found.devices)
        if self._target.kind == "c" and self.compile.backend == "tvm_ffi":
            raise errors.TargetError("backend tvm_ffi does not support target c: use --backend auto or cython")
        if self._target.kind == "cuda" and self.compile.backend == "cython":
            raise errors.TargetError(
                "backend cython does not support grouped CUDA libraries: use --backend auto or tvm_ffi"
            )
        method = self.benchmark.method
        if method != "auto" and (method == "perf_counter") != (self._target.kind == "c"):
            fitting = "'perf_counter'" if self._target.kind == "c" else "'events', 'cuda_graph' or 'cupti'"
            raise errors.TargetError(f"method {method!r} does not time target {self._target.kind}: use {fitting}")
        self._devices = devices
        return self._target, devices

    def compile_lanes(self, candidates: int | None = None) -> list[LocalCompileLane]:
        """One lane a core, less one for each device's process, and no more than memory has room for.

        `CompileSettings.workers` says otherwise.
        """
        cores = usable_cores()
        fitting = workers_that_fit(max(1, len(cores) - len(self._devices)), usable_memory_bytes())
        n = self.compile.workers or fitting
        cpus = cores[:-1] if self._on_cpu and len(cores) > 1 else None
        self.nvrtc.expect(candidates, n)
        return [LocalCompileLane(self, f"compile-{i}", cpus) for i in range(n)]

    def device_lanes(self) -> list[LocalDeviceLane]:
        # A kernel that runs on the CPU is timed on a core of its own, which no compiler may use.
        cores = usable_cores()
        cpus = cores[-1:] if self._on_cpu else None
        return [LocalDeviceLane(self, info, cpus) for info in self._devices]

    def versions(self) -> dict[str, str]:
        return installed_versions()

    def hold_builds(self) -> bool:
        return self.nvrtc.warming

    def on_change(self, wake: Callable[[], None]) -> None:
        self.nvrtc.wake = wake

    def on_warning(self, warn: Callable[[str], None]) -> None:
        self.warn = warn

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
        await worker.call("atune.stages.session:begin", msgspec.msgpack.encode(session), LOAD_TIMEOUT_S)

    async def _ask_once(self, lane: str, entry: str, payload: bytes) -> bytes:
        """Ask a worker that is killed afterwards: the user's code may have started anything in it."""
        worker = await self.spawn(lane)
        try:
            return await worker.call(entry, payload, LOAD_TIMEOUT_S)
        except RemoteError as error:
            raise translated(error) from error
        except (WorkerLost, WorkerTimeout) as error:
            what = self.workload.origin if isinstance(self.workload, FileRef) else "the workload"
            raise WorkloadError(f"loading {what} failed: {error}\n{error.detail}".strip()) from error
        finally:
            await worker.kill()


class LocalCompileLane:
    """One compile worker, replaced when it dies."""

    def __init__(self, backend: LocalBackend, name: str, cpus: Sequence[int] | None) -> None:
        self.backend, self.name, self.cpus = backend, name, cpus
        self._worker: Worker | None = None
        self._built = 0

    async def lower(self, candidate: Candidate) -> Lowered | Failure:
        limit = self.backend.compile.compile_timeout_s
        index = candidate.index
        try:
            reply = await self._call("atune.stages.lowering:run", msgspec.msgpack.encode(candidate), limit)
        except WorkerTimeout as error:
            return Failure(index, "timeout", f"lowering ran past compile_timeout_s={limit:g}", error.detail)
        except WorkerLost as error:
            return Failure(index, "crash", f"lowering ended its process: {how_it_ended(error)}", error.detail)
        except RemoteError as error:
            raise translated(error) from error
        lowered: Lowered | Failure = msgspec.msgpack.decode(reply, type=Lowered | Failure)
        return lowered

    async def find(self, lowered: Lowered) -> Artifact | None:
        store, found = self.backend.store, None
        if store is not None and lowered.storable:
            try:
                found = await anyio.to_thread.run_sync(store.find, lowered.code_key, lowered.index)
            except OSError:
                self.backend.store = None  # read-only, full or gone: this run does without
        if found is None:
            self.backend.nvrtc.saw(lowered, self.backend.target)
        return found

    async def build(self, group: Sequence[Lowered]) -> list[Built]:
        self._built += 1
        path = os.path.join(_made(self.backend.run_dir, "artifacts"), f"{self.name}-{self._built}.so")
        limit = self.backend.compile.compile_timeout_s
        kind: FailureKind
        job = BuildJob(tuple(group), path, self.backend.nvrtc.ready)
        try:
            reply = await self._call("atune.stages.codegen:run", msgspec.msgpack.encode(job), limit)
        except WorkerTimeout as error:
            kind, message, detail = "timeout", f"compiling ran past compile_timeout_s={limit:g}", error.detail
        except WorkerLost as error:
            kind, message, detail = "crash", f"compiling ended its process: {how_it_ended(error)}", error.detail
        except RemoteError as error:
            kind, message, detail = "codegen", str(error), error.detail
        else:
            built = msgspec.msgpack.decode(reply, type=list[Artifact | Failure])
            await self._keep(group, built)
            return [self.backend.nvrtc.explain(one) if isinstance(one, Artifact) else one for one in built]
        if len(group) > 1:
            raise GroupFailed(message)
        return [Failure(group[0].index, kind, message, detail)]

    async def _keep(self, group: Sequence[Lowered], built: Sequence[Built]) -> None:
        store = self.backend.store
        both = zip(group, built, strict=True)
        good = [(low.code_key, one) for low, one in both if isinstance(one, Artifact) and low.storable]
        if store is not None and good:
            try:
                await anyio.to_thread.run_sync(store.put, good)
            except OSError:
                self.backend.store = None  # full or gone: this run does without

    async def _call(self, entry: str, payload: bytes, timeout_s: float) -> bytes:
        if self._worker is None or not self._worker.alive:
            self._worker = await self.backend.spawn(self.name, cpus=self.cpus, nice=COMPILE_NICE)
            await self.backend.session(self._worker)
        return await self._worker.call(entry, payload, timeout_s)


def _made(*parts: str) -> str:
    path = os.path.join(*parts)
    os.makedirs(path, exist_ok=True)
    return path
