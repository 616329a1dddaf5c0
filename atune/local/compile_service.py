"""The compile service of a run: when it is begun, whether builds use it, and why not."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio.abc
import msgspec

from atune.errors import UsageError, WorkerError
from atune.local import service_state as states
from atune.local.compiler_choice import CompileCosts
from atune.local.service_process import ServiceProcess
from atune.model.artifact import Artifact, Lowered
from atune.model.device import Target, parse_target
from atune.model.settings import CompileSettings
from atune.processes.background import background
from atune.processes.messages import ServiceReady
from atune.processes.server import services
from atune.system.cores import usable_cores
from atune.system.surroundings import surroundings

ACCELERATOR = "cicc"
"""The accelerator that the service is for."""
DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""One of these is there where CUDA's driver is."""


class CompileService(anyio.AsyncContextManagerMixin):
    """Owns the process that compiles with headers that it has parsed already; see `atune.stages.accelerators.service`.

    `start` has them parsed ahead of everything else, while the fork server still imports tilelang. The first lowered
    candidate decides whether it is used: until then nobody knows how many there are and what compiling them costs.
    While `warming`, lowering goes on and building waits; `ready` tells builds to use it, `why` what was decided.
    A run that ends well leaves cicc, with the headers parsed, to the next one.
    """

    def __init__(self, settings: CompileSettings, target: str | Target, nice: int = 0) -> None:
        self.state: states.State = states.Idle()
        self.wake: Callable[[], None] = lambda: None
        """Called when `state` has changed."""
        self._settings, self._target, self._nice = settings, target, nice
        self._candidates, self._workers = 0, 1
        self._run_dir = ""
        self._env: Mapping[str, str] = {}
        self._process: ServiceProcess | None = None
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[None, None]:
        try:
            async with background() as self._tasks:
                yield
                if self._process is not None:  # not after an error or a cancellation, which must not wait
                    await self._process.leave()
        finally:
            if self._process is not None:
                self._process.close()

    @property
    def ready(self) -> bool:
        """Whether it is there to compile."""
        return isinstance(self.state, states.Ready)

    @property
    def warming(self) -> bool:
        """Whether it will be."""
        return isinstance(self.state, states.Warming)

    @property
    def soon(self) -> bool:
        """Whether it will be sooner than a group could be built without it."""
        return isinstance(self.state, states.Warming) and self.state.soon

    @property
    def why(self) -> str:
        """What was decided; empty before, and where there is nothing to say."""
        return self.state.why if isinstance(self.state, states.Warming | states.Ready | states.Unused) else ""

    @property
    def pid(self) -> int:
        """The service's process, once there is one."""
        return 0 if self._process is None else self._process.pid

    def start(self, *, early: bool, run_dir: str, env: Mapping[str, str]) -> None:
        """Take over what the run before left; else, where it is `early`, begin to parse headers.

        That is done where they will probably be used and a core is free for it. `run_dir`: where workers look for it.
        """
        self._run_dir, self._env = run_dir, env
        try:
            target = parse_target(self._target)
        except UsageError:
            return  # `discover` tells
        cuda = any(map(os.path.exists, DRIVER)) if target is None else target.kind == "cuda"
        if cuda and self._may_be_used:
            arch = "" if target is None else target.arch
            self._begin(arch, only_kept=not (early and len(usable_cores()) > 1))

    def expect(self, candidates: int | None, workers: int) -> None:
        """Learn how much will be compiled: None when nobody knows."""
        self._candidates, self._workers = candidates or 0, workers

    def decline(self, reason: str) -> None:
        """Learn that the run does without; `reason` is empty where there is nothing to say of it."""
        self._move(states.Unused(f"nvcc, because {reason}" if reason else ""))
        if self._process is not None:
            self._process.give_up()

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Decide, on the first candidate of a run that has to be compiled, whether the service is used."""
        state = states.decided(
            self.state,
            asked=not self._settings.acceleration.auto,
            candidates=self._candidates,
            workers=self._workers,
            lower_s=lowered.seconds,
            now=time.monotonic(),
            costs=CompileCosts(),
        )
        if state is self.state:
            return
        self._move(state)
        if isinstance(state, states.Warming):
            if self._process is None:
                self._begin(None)
            assert self._process is not None
            self._process.listen(msgspec.msgpack.encode((lowered.blob, target.arch, self._run_dir)))
        elif self._process is not None:
            self._process.give_up()

    def explain(self, artifact: Artifact) -> Artifact:
        """Note beside what compiled `artifact` why it did."""
        if not self.why or artifact.why.startswith(("nvcc, because", "cicc could not")):
            return artifact  # its own reason
        return msgspec.structs.replace(artifact, why="; ".join(filter(None, (self.why, artifact.why))))

    @property
    def _may_be_used(self) -> bool:
        settings = self._settings
        asked = settings.acceleration.may(ACCELERATOR)
        plain = settings.flags is None and not settings.verbose and settings.backend in ("auto", "tvm_ffi")
        return asked and plain

    def _begin(self, arch: str | None, *, only_kept: bool = False) -> None:
        kind = (self._target, self._settings.verbose, *surroundings())
        kept = services.take(kind) if self._may_be_used else None
        if kept is None and only_kept:
            return
        self._move(states.begun(self.state, time.monotonic(), before=kept is not None))
        self._process = ServiceProcess(kind, kept=kept, arch=arch, env=self._env, nice=self._nice)
        self._tasks.start_soon(self._run, self._process)

    async def _run(self, process: ServiceProcess) -> None:
        try:
            await process.run(anew=self._anew, answered=self._answered)
        except (WorkerError, OSError, msgspec.MsgspecError) as error:
            said = getattr(error, "detail", "").strip().splitlines()
            reason = "; ".join((f"the compile service ended: {error}", *said[-1:]))
            self._move(states.failed(self.state, reason))
        finally:
            self._move(states.left(self.state))

    def _anew(self) -> None:
        """Learn that what the run before left has ended meanwhile, so that headers are parsed again."""
        if isinstance(self.state, states.Parsing):
            self._move(states.Parsing(self.state.started))

    def _answered(self, answer: ServiceReady) -> None:
        if answer.ok:
            self._move(states.listening(self.state, answer.header_s))
        else:
            self._move(states.failed(self.state, answer.reason))

    def _move(self, state: states.State) -> None:
        if state != self.state:
            self.state = state
            self.wake()
