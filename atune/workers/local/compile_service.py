"""The compile service of a run: a process with the headers of CUDA parsed, which compiles device code by cicc."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import msgspec

from atune.engine.run_state import background
from atune.errors import AtuneError, UsageError, WorkerError
from atune.model.artifact import Artifact, Lowered
from atune.model.device import Target, parse_target
from atune.model.settings import CompileSettings
from atune.workers.local.workers import process_folders
from atune.workers.processes.messages import SERVICE_HEADER, SERVICE_LISTEN, ServiceReady
from atune.workers.processes.pool import ForkServer
from atune.workers.processes.server import started
from atune.workers.processes.worker import Worker
from atune.workers.system.resources import usable_cores

DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""Files of CUDA's driver: if the driver is installed, one of them exists."""
PRELOAD = ("atune.stages.cicc.server",)
PREPARE_TIMEOUT_S = 120.0


class ServiceProcess(anyio.AsyncContextManagerMixin):
    """The process with the parsed headers: of one run, or of several at the same time. Forked at the first call.

    It has a fork server of its own, which imports almost nothing; see `atune.stages.cicc.server`.
    """

    def __init__(self, nice: int = 0) -> None:
        self._nice = nice
        self._worker: Worker | None = None
        self._turn = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[ServiceProcess, None]:
        async with background() as self._tasks:
            yield self

    @property
    def pid(self) -> int:
        """The process; 0 before it starts."""
        return 0 if self._worker is None else self._worker.pid

    async def call(self, entry: str, request: object) -> ServiceReady:
        """Have the process answer. Raises `WorkerError` and `OSError`. Cancelling it ends the process."""
        async with self._turn:
            if self._worker is None:
                self._worker = await self._tasks.start(self._run)
            answer = await self._worker.call(entry, msgspec.msgpack.encode(request), PREPARE_TIMEOUT_S)
        return msgspec.msgpack.decode(answer, type=ServiceReady)

    async def ended(self) -> AtuneError:
        """Wait until the process ends, and return the error that says how."""
        assert self._worker is not None, "`call` comes first"
        return await self._worker.ended()

    async def _run(self, *, task_status: anyio.abc.TaskStatus[Worker]) -> None:
        async with ForkServer(started(PRELOAD)) as server:
            worker = await server.spawn("service", env=process_folders(str(server.run_dir)), nice=self._nice)
            task_status.started(worker)
            await worker.ended()


class CompileService:
    """Has a run's candidates compiled by `process`.

    `start` begins to parse headers while the fork server still imports tilelang. At the first candidate that must be
    compiled the process is asked to compile for the run, unless `use` was false. While `warming`, lowering continues
    and building waits. If `ready`, builds use the service. `why` says which compiler is used.
    """

    def __init__(self, settings: CompileSettings, target: str | Target) -> None:
        self.ready = False
        """Whether the service compiles."""
        self.wake: Callable[[], None] = lambda: None
        """Called after each change."""
        self.process: ServiceProcess
        self._settings, self._target = settings, target
        self._run_dir = ""
        self._asked = False
        """Whether a candidate came that must be compiled."""
        self._request: tuple[bytes, str, str]
        self._against: str | None = None
        """Why the run does without the service; empty if that needs no explanation, None if it does not."""
        self._broken = self._parsed = ""
        """Why the process does not compile, and how it came by its headers."""
        self._scope: anyio.CancelScope | None = None
        """Ends what the run asks of the process; None without it."""
        self._wanted: anyio.Event
        self._tasks: anyio.abc.TaskGroup

    @property
    def warming(self) -> bool:
        """Whether the service will soon be `ready`."""
        return self._asked and not (self._parsed or self._broken or self._against is not None)

    @property
    def why(self) -> str:
        """The choice of the compiler and its reason. Empty before the choice, or if it needs no explanation."""
        against = self._broken if self._asked and self._against is None else self._against
        return f"nvcc, because {against}" if against else "" if against is None else self._parsed

    def start(self, process: ServiceProcess, tasks: anyio.abc.TaskGroup, run_dir: str, *, early: bool) -> None:
        """Have `process` serve the run. If `early`, and a core is free, begin to parse headers that it may need.

        `run_dir`: the folder where workers look for the service.
        """
        self.process, self._tasks, self._run_dir = process, tasks, run_dir
        try:
            target = parse_target(self._target)
        except UsageError:
            return  # `discover` reports the error
        settings = self._settings
        cuda = any(map(os.path.exists, DRIVER)) if target is None else target.kind == "cuda"
        if early and cuda and settings.cicc and settings.flags is None and len(usable_cores()) > 1:
            self._begin("" if target is None else target.arch)

    def use(self, against: str | None) -> None:
        """Use the service in this run, or not if there is a reason `against` it, which may be empty."""
        self._against = against
        if against is not None and self._scope is not None:
            self.ready = False
            self._scope.cancel()
            self._scope = None
        self.wake()

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Have the service compile for the run, at the first candidate that must be compiled."""
        if self._asked or self._against is not None:
            return
        self._asked = True
        if not self._broken:
            if self._scope is None:
                self._begin(None)
            self._request = (lowered.blob, target.arch, self._run_dir)
            self._wanted.set()
        self.wake()

    def explain(self, artifact: Artifact) -> Artifact:
        """Return `artifact` with the reason for the choice of its compiler."""
        if not self.why or artifact.why.startswith(("nvcc, because", "cicc could not")):
            return artifact  # it has a reason of its own
        return msgspec.structs.replace(artifact, why="; ".join(filter(None, (self.why, artifact.why))))

    def _begin(self, arch: str | None) -> None:
        """Have headers for `arch` parsed before a candidate is known. An empty `arch` means that of this machine's GPU;
        None waits for the candidate."""
        self._wanted, self._scope = anyio.Event(), anyio.CancelScope()
        self._tasks.start_soon(self._run, arch, self._scope, self._wanted)

    async def _run(self, arch: str | None, scope: anyio.CancelScope, wanted: anyio.Event) -> None:
        try:
            with scope:
                early_s = 0.0 if arch is None else (await self.process.call(SERVICE_HEADER, arch)).header_s
                await wanted.wait()
                answer = await self.process.call(SERVICE_LISTEN, self._request)
                self._answered(msgspec.structs.replace(answer, header_s=answer.header_s or early_s))
                if answer.ok:
                    raise await self.process.ended()
        except (WorkerError, OSError, msgspec.MsgspecError) as error:
            output = getattr(error, "detail", "").strip().splitlines()
            self._broken = "; ".join((f"the compile service ended: {error}", *output[-1:]))
        finally:
            self.ready = False
            self.wake()

    def _answered(self, answer: ServiceReady) -> None:
        if answer.ok:
            parsed_s = answer.header_s
            self._parsed = f"headers parsed in {parsed_s:.1f} s" if parsed_s else "headers parsed in an earlier run"
            self.ready = self._against is None
        else:
            self._broken = answer.reason
        self.wake()
