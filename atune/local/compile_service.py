"""The compile service of a run: when it is started, which compiler it has, and why not."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.abc
import msgspec

from atune.errors import UsageError, WorkerError
from atune.local.compiler_choice import CompileCosts, choose
from atune.model.artifact import Artifact, Lowered
from atune.model.device import Target, parse_target
from atune.processes.background import background
from atune.processes.messages import ServiceReady
from atune.processes.pool import ForkServer
from atune.processes.server import ServerProcess, services, surroundings
from atune.processes.worker import Worker
from atune.system.cores import usable_cores
from atune.system.folders import server_folder

if TYPE_CHECKING:
    from atune.local.backend import LocalBackend

PREPARE_TIMEOUT_S = 120.0
LEAVE_S = 1.0
PRELOAD = ("atune.stages.accelerators.service",)
STAGE = "atune.stages.accelerators.service:"
PARSED = "parsed"
DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""One of these is there where CUDA's driver is."""


class CompileService(anyio.AsyncContextManagerMixin):
    """Owns the process that compiles with headers that it has parsed already; see `atune.stages.accelerators.service`.

    `start` has them parsed ahead of everything else, while the fork server still imports tilelang. The first lowered
    candidate decides whether it is used: until then nobody knows how many there are and what compiling them costs.
    While `warming`, lowering goes on and building waits; `compiler` tells builds what to use, `why` what was decided.
    A run that ends well leaves cicc, with the headers parsed, to the next one.
    """

    def __init__(self, backend: LocalBackend, nice: int = 0) -> None:
        self.backend = backend
        self.warming = False
        self.compiler = ""
        """``cicc``, while the service is there."""
        self.soon = False
        """Whether parsing was begun so early that waiting for it takes less than nvcc would."""
        self.why = ""
        self.wake: Callable[[], None] = lambda: None
        self.pid = 0
        """The service's process, once there is one."""
        self._lanes, self._candidates, self._nice = 1, 0, nice
        self._started: float | None = None
        self._decided = False
        self._broken = ""
        """Why the service is not there any more."""
        self._first: Lowered | None = None
        """The candidate whose flags, and where it must be whose includes, the headers are parsed for."""
        self._kept: ServerProcess | None = None
        """The process that the run before left, until it is taken up."""
        self._parsed_before = False
        self._idle = False
        """Whether the process is in no call: then it can be left to the next run."""
        self._wanted: anyio.Event
        self._leaving: anyio.Event
        self._left: anyio.Event
        self._tasks: anyio.abc.TaskGroup
        self._scope: anyio.CancelScope | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[None, None]:
        self._wanted, self._leaving, self._left = anyio.Event(), anyio.Event(), anyio.Event()
        try:
            async with background() as self._tasks:
                yield
                if self._idle:  # not after an error or a cancellation, which must not wait
                    self._leaving.set()
                    with anyio.move_on_after(LEAVE_S):
                        await self._left.wait()
        finally:
            if self._kept is not None:
                self._kept.destroy()

    def start(self, early: bool) -> None:
        """Take over what the run before left; else, where it is `early`, begin to parse headers.

        That is done where they will probably be used and a core is free for it.
        """
        settings = self.backend.compile
        try:
            target = parse_target(self.backend.target_text)
        except UsageError:
            return  # `discover` tells
        cuda = any(map(os.path.exists, DRIVER)) if target is None else target.kind == "cuda"
        pays = (
            settings.compiler != "nvcc"
            and settings.flags is None
            and not settings.verbose
            and settings.backend in ("auto", "tvm_ffi")
        )
        if cuda and pays:
            self._kept = services.take(self._kind)
            self._parsed_before = self._kept is not None
            if self._parsed_before or (early and len(usable_cores()) > 1):
                self._start(target.arch if target is not None else "")

    def expect(self, candidates: int | None, lanes: int) -> None:
        """Learn how much will be compiled: None when nobody knows."""
        self._candidates, self._lanes = candidates or 0, lanes

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Decide, on the first candidate of a run that has to be compiled, whether the service is used."""
        if self._decided:
            return
        self._decided = True
        if target.kind != "cuda" or self.backend.alone:
            self._give_up()
            return
        if self._broken:
            self.why = f"nvcc, because {self._broken}"
            return
        costs = CompileCosts().scaled(lowered.seconds)
        if self._started is not None:  # what is spent is spent
            spent_s = costs.header_s if self._parsed_before else time.monotonic() - self._started
            left_s = max(0.0, costs.header_s - spent_s)
            costs, self.soon = msgspec.structs.replace(costs, header_s=left_s), True
        asked = self.backend.compile.compiler
        chosen = choose(self._candidates, self._lanes, costs)
        name, self.why = (asked, "as asked") if asked != "auto" else chosen
        if name == "nvcc":
            self._give_up()
            return
        self.warming, self._first = True, lowered
        if self._started is None:
            self._start(None)
        self._wanted.set()

    def explain(self, artifact: Artifact) -> Artifact:
        """Note beside what compiled `artifact` why it did."""
        if not self.why or (artifact.why and artifact.compiler == "nvcc"):
            return artifact
        return msgspec.structs.replace(artifact, why="; ".join(filter(None, (self.why, artifact.why))))

    def _start(self, arch: str | None) -> None:
        self._started = time.monotonic()
        self._tasks.start_soon(self._run, arch)

    @property
    def _kind(self) -> tuple[object, ...]:
        """What a service of another run must have in common with this one's."""
        backend = self.backend
        settings = (backend.compile.compiler, backend.compile.verbose)
        return (backend.target_text, settings, *surroundings())

    async def _run(self, arch: str | None) -> None:
        """Run the service's process: of a fork server of its own, which imports next to nothing.

        `arch`: what to parse headers for before a candidate is known, empty for this machine's GPU's; None waits.
        """
        kept, self._kept = self._kept, None
        with anyio.CancelScope() as self._scope:
            try:
                try:
                    await self._attach(kept, arch)
                except (WorkerError, OSError):
                    if kept is None or self.compiler or self._leaving.is_set():
                        raise
                    self._parsed_before = False  # it ended while nobody looked
                    await self._attach(None, arch)
            except (WorkerError, OSError, msgspec.MsgspecError) as error:
                said = getattr(error, "detail", "").strip().splitlines()
                self._failed("; ".join((f"the compile service ended: {error}", *said[-1:])))
            finally:
                self.compiler = ""
                self._changed()
                self._left.set()

    async def _attach(self, kept: ServerProcess | None, arch: str | None) -> None:
        park = functools.partial(self._park, self._kind)
        process = kept or ServerProcess(PRELOAD, *server_folder(), env=self.backend.server_env)
        async with ForkServer(process=process, park=park) as server:
            env = {**self.backend.run_env, "TMPDIR": str(process.folder)}  # it may outlive the run
            worker = server.lasting or await server.spawn("service", env=env, nice=self._nice, lasting=True)
            self.pid = worker.pid
            await self._serve(worker, None if kept else arch, server.facts)

    @staticmethod
    def _park(kind: tuple[object, ...], process: ServerProcess) -> None:
        if process.facts.get(PARSED) and process.lasting:
            services.park(kind, process)
        else:
            process.destroy()

    async def _serve(self, worker: Worker, arch: str | None, facts: dict[str, bool]) -> None:
        made_s, run_dir = 0.0, self.backend.run_dir
        if arch is not None:
            request = msgspec.msgpack.encode(arch)
            reply = await worker.call(f"{STAGE}header", request, PREPARE_TIMEOUT_S)
            parsed = msgspec.msgpack.decode(reply, type=ServiceReady)
            made_s, facts[PARSED] = parsed.header_s, parsed.ok
        if not await self._idle_until(self._wanted, worker):
            return
        assert self._first is not None
        request = msgspec.msgpack.encode((self._first.blob, self.backend.target.arch, run_dir))
        reply = await worker.call(f"{STAGE}listen", request, PREPARE_TIMEOUT_S)
        answer = msgspec.msgpack.decode(reply, type=ServiceReady)
        self._first, facts[PARSED] = None, answer.ok
        if not answer.ok:
            self._failed(answer.reason)
            return
        parsed_s = answer.header_s or made_s
        self.why += f"; headers parsed in {parsed_s:.1f} s" if parsed_s else "; headers parsed by the run before"
        self.compiler = "cicc"
        self._changed()
        await self._idle_until(anyio.Event(), worker)

    async def _idle_until(self, event: anyio.Event, worker: Worker) -> bool:
        """Wait for `event`; False where the run leaves before. Raises `WorkerError` where the process ends."""

        async def until(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        self._idle = True
        try:
            async with anyio.create_task_group() as tasks:
                for wait in (event.wait, self._leaving.wait, worker.ended):
                    tasks.start_soon(until, wait)
        finally:
            self._idle = False
        if not worker.alive:
            raise await worker.ended()
        return not self._leaving.is_set()

    def _give_up(self) -> None:
        """Leave to the next run, or end, the service's process where one was begun that nobody needs."""
        if self._idle:
            self._leaving.set()
        elif self._scope is not None:
            self._scope.cancel()

    def _failed(self, reason: str) -> None:
        self._broken = reason
        if self._decided:
            self.why = f"nvcc, because {reason}"

    def _changed(self) -> None:
        self.warming = False
        self.wake()
