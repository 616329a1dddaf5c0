"""The compile service of a run: cicc with headers parsed in advance, in a process that may outlive the run."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager

import anyio
import anyio.abc
import msgspec

from atune.engine.background import background
from atune.errors import UsageError, WorkerError
from atune.model.artifact import Artifact, Lowered
from atune.model.device import Target, parse_target
from atune.model.folders import server_folder
from atune.model.settings import CompileSettings
from atune.workers.local.entry_points import SERVICE_HEADER, SERVICE_LISTEN, SERVICE_PRELOAD
from atune.workers.local.fork_servers import server_env
from atune.workers.processes.messages import ServiceReady
from atune.workers.processes.pool import ForkServer
from atune.workers.processes.server import ForkServerProcess, services
from atune.workers.processes.worker import Worker
from atune.workers.system.inherited_state import surroundings
from atune.workers.system.resources import usable_cores

ACCELERATOR = "cicc"
"""The accelerator that needs the service."""
DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""Files of CUDA's driver: if the driver is installed, one of them exists."""
PREPARE_TIMEOUT_S = 120.0
LEAVE_S = 1.0
PARSED = "parsed"
"""Key of the fact whether headers are parsed. The next run gets it with the process."""


class CompileService(anyio.AsyncContextManagerMixin):
    """Owns the process that compiles with headers parsed in advance; see `atune.stages.accelerators.service`.

    `start` begins to parse them while the fork server still imports tilelang. At the first candidate that must be
    compiled the process is asked to compile for the run, unless `use` was false. While `warming`, lowering continues
    and building waits. If `ready`, builds use the service. `why` says which compiler is used.
    A run that ends well leaves cicc, with its parsed headers, to the next run.
    """

    def __init__(self, settings: CompileSettings, target: str | Target, nice: int = 0) -> None:
        self.ready = False
        """Whether the service compiles."""
        self.wake: Callable[[], None] = lambda: None
        """Called after each change."""
        self._settings, self._target, self._nice = settings, target, nice
        self._run_dir = ""
        self._env: Mapping[str, str] = {}
        self._asked = self._early = False
        """Whether a candidate came that must be compiled, and whether headers were being parsed before."""
        self._against: str | None = None
        """Why the run does without the service; empty if that needs no explanation, None if it does not."""
        self._broken = self._parsed = ""
        """Why the process does not compile, and how it came by its headers."""
        self._process: _Process | None = None
        self._tasks: anyio.abc.TaskGroup
        self._unused: ExitStack

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[None, None]:
        with ExitStack() as self._unused:
            async with background() as self._tasks:
                yield
                if self._process is not None:  # skipped after an error or a cancellation, which must not wait
                    await self._process.leave()

    @property
    def warming(self) -> bool:
        """Whether the service will soon be `ready`."""
        return self._asked and not (self._parsed or self._broken or self._against is not None)

    @property
    def soon(self) -> bool:
        """Whether waiting for the service takes less time than building a group without it."""
        return self.warming and self._early

    @property
    def why(self) -> str:
        """The choice of the compiler and its reason. Empty before the choice, or if it needs no explanation."""
        against = self._broken if self._asked and self._against is None else self._against
        return f"nvcc, because {against}" if against else "" if against is None else self._parsed

    @property
    def pid(self) -> int:
        """The service's process; 0 before it starts."""
        return 0 if self._process is None else self._process.pid

    def start(self, *, early: bool, run_dir: str, env: Mapping[str, str]) -> None:
        """Take over the process that the previous run left. Otherwise, if `early`, begin to parse headers.

        Does nothing if the service will probably not be used. A new process also needs a free core. `run_dir`: the
        folder where workers look for the service.
        """
        self._run_dir, self._env = run_dir, env
        try:
            target = parse_target(self._target)
        except UsageError:
            return  # `discover` reports the error
        settings = self._settings
        cuda = any(map(os.path.exists, DRIVER)) if target is None else target.kind == "cuda"
        if not (cuda and settings.acceleration.may(ACCELERATOR) and settings.flags is None and not settings.verbose):
            return
        kept = services.take(self._kind)
        if kept or (early and len(usable_cores()) > 1):
            self._begin(kept, "" if target is None else target.arch)

    def use(self, against: str | None) -> None:
        """Use the service in this run, or not if there is a reason `against` it, which may be empty."""
        self._against = against
        if against is not None and self._process is not None:
            self.ready = False
            self._process.give_up()
        self.wake()

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Have the service compile for the run, at the first candidate that must be compiled."""
        if self._asked or self._against is not None:
            return
        self._asked = True
        if not self._broken:
            self._early = self._process is not None and not self._process.given_up
            if not self._early:
                self._begin(None, None)
            assert self._process is not None
            self._process.listen(msgspec.msgpack.encode((lowered.blob, target.arch, self._run_dir)))
        self.wake()

    def explain(self, artifact: Artifact) -> Artifact:
        """Return `artifact` with the reason for the choice of its compiler."""
        if not self.why or artifact.why.startswith(("nvcc, because", "cicc could not")):
            return artifact  # it has a reason of its own
        return msgspec.structs.replace(artifact, why="; ".join(filter(None, (self.why, artifact.why))))

    @property
    def _kind(self) -> tuple[object, ...]:
        """Properties that another run must share to take the process over."""
        return (self._target, self._settings.verbose, *surroundings())

    def _begin(self, kept: ForkServerProcess | None, arch: str | None) -> None:
        self._process = _Process(self._kind, kept, arch, self._env, self._nice, self._answered)
        self._unused.callback(self._process.close)
        self._tasks.start_soon(self._run, self._process)

    async def _run(self, process: _Process) -> None:
        try:
            await process.run()
        except (WorkerError, OSError, msgspec.MsgspecError) as error:
            output = getattr(error, "detail", "").strip().splitlines()
            self._broken = "; ".join((f"the compile service ended: {error}", *output[-1:]))
        finally:
            self.ready = False
            self.wake()

    def _answered(self, answer: ServiceReady) -> None:
        if answer.ok:
            how = f"in {answer.header_s:.1f} s" if answer.header_s else "by the previous run"
            self._parsed = f"headers parsed {how}"
            self.ready = self._against is None
        else:
            self._broken = answer.reason
        self.wake()


class _Process:
    """One process of the service, forked by a server of its own, which imports almost nothing.

    `kept`: the process that the previous run left, if any. `arch`: a new process parses headers for it before a
    candidate is known. An empty `arch` means that of this machine's GPU; None waits for the candidate. `env`: the
    process's additional environment. `nice`: added to its niceness. `answered` gets the answer to `listen`.
    """

    def __init__(
        self,
        kind: tuple[object, ...],
        kept: ForkServerProcess | None,
        arch: str | None,
        env: Mapping[str, str],
        nice: int,
        answered: Callable[[ServiceReady], None],
    ) -> None:
        self.pid = 0
        """The process; 0 before it starts."""
        self._kind, self._kept, self._arch, self._env, self._nice = kind, kept, arch, env, nice
        self._answered = answered
        self._request = b""
        self._compiles = False
        self._idle = False
        """Whether the process is in no call. Only then can the next run take it over."""
        self._wanted, self._leaving, self._left = anyio.Event(), anyio.Event(), anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Run the process until `leave` or `give_up`, or another one if what the previous run left has ended.

        Raises `WorkerError`, `OSError` or `MsgspecError` if the process ends early.
        """
        kept, self._kept = self._kept, None
        try:
            with self._scope:
                if kept is not None:
                    try:
                        return await self._attach(kept, None)
                    except (WorkerError, OSError):
                        if self._compiles or self._leaving.is_set():
                            raise
                    self.pid, self._arch = 0, None
                    await _first(self._wanted.wait, self._leaving.wait)
                if not self._leaving.is_set():
                    new = ForkServerProcess(SERVICE_PRELOAD, *server_folder(), env=server_env())
                    await self._attach(new, self._arch)
        finally:
            self._left.set()

    def listen(self, request: bytes) -> None:
        """Have the process compile for the run, after its current parsing. `request`: the payload of ``listen``."""
        self._request = request
        self._wanted.set()

    @property
    def given_up(self) -> bool:
        return self._leaving.is_set() or self._scope.cancel_called

    def give_up(self) -> None:
        """Leave the process to the next run, or end it if it is in a call."""
        if self._idle or not self.pid:
            self._leaving.set()
        else:
            self._scope.cancel()

    async def leave(self) -> None:
        """Leave the process to the next run, if it is in no call."""
        if self._idle or self._leaving.is_set():
            self._leaving.set()
            with anyio.move_on_after(LEAVE_S):
                await self._left.wait()

    def close(self) -> None:
        """End the process that the previous run left, if `run` never took it over."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.destroy()

    async def _attach(self, process: ForkServerProcess, arch: str | None) -> None:
        async with ForkServer(process=process, park=functools.partial(_park, self._kind)) as server:
            env = {**self._env, "TMPDIR": str(process.folder)}  # it may outlive the run
            worker = server.lasting or await server.spawn("service", env=env, nice=self._nice, lasting=True)
            self.pid, made_s = worker.pid, 0.0
            if arch is not None and not self._leaving.is_set():
                parsed = await _call(worker, SERVICE_HEADER, msgspec.msgpack.encode(arch))
                made_s, server.facts[PARSED] = parsed.header_s, parsed.ok
            if not await self._idle_until(self._wanted, worker):
                return
            answer = await _call(worker, SERVICE_LISTEN, self._request)
            self._compiles = server.facts[PARSED] = answer.ok
            self._answered(msgspec.structs.replace(answer, header_s=answer.header_s or made_s))
            if answer.ok:
                await self._idle_until(anyio.Event(), worker)

    async def _idle_until(self, event: anyio.Event, worker: Worker) -> bool:
        """Wait for `event`. Returns false if the run leaves earlier. Raises `WorkerError` if the process ends."""
        self._idle = True
        try:
            await _first(event.wait, self._leaving.wait, worker.ended)
        finally:
            self._idle = False
        if not worker.alive:
            raise await worker.ended()
        return not self._leaving.is_set()


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait until one of `waits` returns, and cancel the others."""

    async def until(wait: Callable[[], Awaitable[object]]) -> None:
        await wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for wait in waits:
            tasks.start_soon(until, wait)


async def _call(worker: Worker, entry: str, request: bytes) -> ServiceReady:
    return msgspec.msgpack.decode(await worker.call(entry, request, PREPARE_TIMEOUT_S), type=ServiceReady)


def _park(kind: tuple[object, ...], process: ForkServerProcess) -> None:
    if process.facts.get(PARSED) and process.lasting:
        services.park(kind, process)
    else:
        process.destroy()
