"""The compile service of a run: when it starts, whether builds use it, and why not."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio.abc
import msgspec

from atune.errors import UsageError, WorkerError
from atune.local import service_state as states
from atune.local.service_process import ServiceProcess
from atune.local.service_state import CompileCosts
from atune.model.artifact import Artifact, Lowered
from atune.model.device import Target, parse_target
from atune.model.settings import CompileSettings
from atune.processes.background import background
from atune.processes.messages import ServiceReady
from atune.processes.server import services
from atune.system.inherited_state import surroundings
from atune.system.resources import usable_cores

ACCELERATOR = "cicc"
"""The accelerator that needs the service."""
DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""Files of CUDA's driver: if the driver is installed, one of them exists."""


class CompileService(anyio.AsyncContextManagerMixin):
    """Owns the process that compiles with headers parsed in advance; see `atune.stages.accelerators.service`.

    `start` begins to parse them while the fork server still imports tilelang. The first lowered candidate decides
    whether builds use the service: only then are the number of candidates and the cost of compiling known.
    While `warming`, lowering continues and building waits. If `ready`, builds use the service. `why` is the decision.
    A run that ends well leaves cicc, with its parsed headers, to the next run.
    """

    def __init__(self, settings: CompileSettings, target: str | Target, nice: int = 0) -> None:
        self.state: states.State = states.Idle()
        self.wake: Callable[[], None] = lambda: None
        """Called after each change of `state`."""
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
                if self._process is not None:  # skipped after an error or a cancellation, which must not wait
                    await self._process.leave()
        finally:
            if self._process is not None:
                self._process.close()

    @property
    def ready(self) -> bool:
        """Whether the service can compile."""
        return isinstance(self.state, states.Ready)

    @property
    def warming(self) -> bool:
        """Whether the service will soon be `ready`."""
        return isinstance(self.state, states.Warming)

    @property
    def soon(self) -> bool:
        """Whether waiting for the service takes less time than building a group without it."""
        return isinstance(self.state, states.Warming) and self.state.soon

    @property
    def why(self) -> str:
        """The decision and its reason. Empty before the decision, or if it needs no explanation."""
        return self.state.why if isinstance(self.state, states.Warming | states.Ready | states.Unused) else ""

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
        cuda = any(map(os.path.exists, DRIVER)) if target is None else target.kind == "cuda"
        if cuda and self._may_be_used:
            arch = "" if target is None else target.arch
            self._begin(arch, early=early and len(usable_cores()) > 1)

    def expect(self, candidates: int | None, workers: int) -> None:
        """Set the number of candidates, None if unknown, and of compile workers."""
        self._candidates, self._workers = candidates or 0, workers

    def reconsider(self) -> None:
        """Decide anew: the run's target is another one than was thought."""
        if self._process is None:
            self._move(states.Idle())

    def decline(self, reason: str) -> None:
        """Do without the service in this run. `reason` is empty if it needs no explanation."""
        self._move(states.Unused(f"nvcc, because {reason}" if reason else ""))
        if self._process is not None:
            self._process.give_up()

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Decide whether to use the service, at the first candidate that must be compiled."""
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
                self._begin(None, early=True)
            assert self._process is not None
            self._process.listen(msgspec.msgpack.encode((lowered.blob, target.arch, self._run_dir)))
        elif self._process is not None:
            self._process.give_up()

    def explain(self, artifact: Artifact) -> Artifact:
        """Return `artifact` with the reason for the choice of its compiler."""
        if not self.why or artifact.why.startswith(("nvcc, because", "cicc could not")):
            return artifact  # it has a reason of its own
        return msgspec.structs.replace(artifact, why="; ".join(filter(None, (self.why, artifact.why))))

    @property
    def _may_be_used(self) -> bool:
        settings = self._settings
        asked = settings.acceleration.may(ACCELERATOR)
        plain = settings.flags is None and not settings.verbose
        return asked and plain

    def _begin(self, arch: str | None, *, early: bool) -> None:
        kind = (self._target, self._settings.verbose, *surroundings())
        kept = services.take(kind) if self._may_be_used else None
        if not (kept or early):
            return
        self._move(states.begun(self.state, time.monotonic(), before=kept is not None))
        self._process = ServiceProcess(kind, kept=kept, arch=arch, early=early, env=self._env, nice=self._nice)
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
        """Return to parsing, because the process that the previous run left has ended."""
        if isinstance(self.state, states.Parsing):
            self._move(states.Parsing(self.state.started))

    def _answered(self, answer: ServiceReady) -> None:
        if answer.ok:
            self._move(states.listening(self.state, answer))
        else:
            self._move(states.failed(self.state, answer.reason))

    def _move(self, state: states.State) -> None:
        if state != self.state:
            self.state = state
            self.wake()
