"""The compile service: a process that has parsed CUDA's headers, and compiles device code with cicc."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import anyio.abc
import msgspec

from atune.errors import WorkerError
from atune.model.artifact import Lowered
from atune.model.device import Target, parse_target
from atune.model.settings import CompileSettings
from atune.workers.messages import SERVICE_LISTEN
from atune.workers.pool import ForkServer, Worker
from atune.workers.resources import COMPILE_NICE, usable_cores
from atune.workers.server import DRIVER, parked_service, started, warm_service
from atune.workers.waiting import background
from atune.workers.workers import process_folders

PREPARE_TIMEOUT_S = 120.0
NEW_STATE = "nvcc, because the compiler state is new, and the run has few candidates"
"""Why nvcc compiles in a run that compares its new compiler state at the same time."""


class ServiceProcess(anyio.AsyncContextManagerMixin):
    """The process that keeps the parsed headers, for one run or several concurrent runs. The first call forks it.

    The process has its own fork server, which imports almost nothing; see `atune.stages.cicc_server`. If the fork
    server has parsed headers, it is parked for the program's next run.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        """The process; None before it starts."""
        self._turn = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup
        self._calls: anyio.abc.TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[ServiceProcess, None]:
        self._ended = anyio.Event()
        try:
            async with background(cancel=False) as self._tasks:
                async with background() as self._calls:
                    yield self
                self._ended.set()
        except BaseException:
            parked_service.park(None)  # a cancelled run leaves no process
            raise

    @property
    def begun(self) -> bool:
        """Whether the process has started or is starting."""
        return self.worker is not None or self._turn.locked()

    async def call(self, entry: str, request: object) -> str:
        """Call `entry` in the process. Return the reason if the call failed, and otherwise an empty text. Raises
        `WorkerError` and `OSError`. A cancelled call goes on in the process, which other runs may share."""
        answered, answers = anyio.Event(), list[str | Exception]()

        async def answer() -> None:
            try:
                async with self._turn:
                    if self.worker is None:
                        self.worker = await self._tasks.start(self._run)
                    payload = msgspec.msgpack.encode(request)
                    answers.append((await self.worker.call(entry, payload, PREPARE_TIMEOUT_S)).decode())
            except Exception as error:
                answers.append(error)
            answered.set()

        self._calls.start_soon(answer)
        await answered.wait()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    async def _run(self, *, task_status: anyio.abc.TaskStatus[Worker]) -> None:
        before = parked_service.take()
        park = None if before is None else parked_service.park  # only a parked server itself has parsed headers
        async with ForkServer(before or started(("atune.stages.cicc_server",)), park=park) as server:
            folders = process_folders(str(server.process.folder))
            task_status.started(await server.spawn("service", env=folders, nice=COMPILE_NICE))
            await self._ended.wait()
            shutil.rmtree(folders["TMPDIR"], ignore_errors=True)  # for headers that only this run needed


class CompileService:
    """The compile service, as one run uses it: `process` compiles the run's candidates.

    `start` begins to parse headers while the fork server still imports tilelang. The first candidate that must be
    compiled makes the process prepare to compile for the run, unless `use` got a reason not to use the service. While
    the service is `warming`, the run lowers candidates but builds none. When it is `ready`, builds use it.
    """

    def __init__(self, settings: CompileSettings, target: str | Target) -> None:
        self.ready = False
        """Whether builds use the service."""
        self.why = ""
        """Why nvcc compiles; empty if another compiler is used, or if no explanation is needed."""
        self.wake: Callable[[], None] = lambda: None
        """Called after each change."""
        self.process: ServiceProcess
        self._settings, self._target = settings, target
        self._run_dir = ""
        self._off = False
        self.few = False
        """Whether the run has so few candidates that nvcc compiles them if their compiler state is new."""
        self._compared = set[str]()
        """Keys of header parts whose new compiler states are compared; see `Lowered.use`."""
        self._request: tuple[bytes, str, str] | None = None
        """The request to the process; None until a candidate must be compiled."""
        self._tasks: anyio.abc.TaskGroup

    @property
    def warming(self) -> bool:
        """Whether the service is being prepared, and will soon be `ready`."""
        return self._request is not None and not (self.ready or self.why or self._off)

    def start(self, process: ServiceProcess, tasks: anyio.abc.TaskGroup, run_dir: str) -> None:
        """Have `process` serve the run. If a core is free, begin to parse headers that the run may need. `run_dir`: the
        folder in which workers look for the service."""
        self.process, self._tasks, self._run_dir = process, tasks, run_dir
        settings, target = self._settings, parse_target(self._target)
        cuda = any(map(os.path.exists, DRIVER)) if target is None else target.kind == "cuda"
        if cuda and settings.cicc and settings.flags is None and len(usable_cores()) > 1 and not process.begun:
            with suppress(OSError):  # the first candidate to compile shows the error
                warm_service("" if target is None else target.arch)

    def use(self, against: str | None) -> None:
        """Use the service in this run if `against` is None. Otherwise, `against` is the reason for not using the
        service, and may be empty."""
        self._off, self.why = against is not None, f"nvcc, because {against}" if against else ""

    def saw(self, lowered: Lowered, target: Target, *, known: bool) -> None:
        """Have the service compile for the run, beginning with the first candidate that must be compiled. `known`:
        whether cicc and nvcc were already compared in the candidate's compiler state."""
        if self._request is not None or self._off:
            return
        self._request = (lowered.blob, target.arch, self._run_dir)
        self.why = NEW_STATE if self.few and not known else ""
        self._tasks.start_soon(self._run)
        self.wake()

    def compilers(self, uses: Sequence[str], states: Sequence[tuple[str, str]]) -> Literal["cicc", "nvcc", "both"]:
        """Return the compilers for a group; ``both`` only once for each new state.

        `uses`, `states`: the members' `Lowered.use`, and their compiler states, as `RunStore.state` returns them.
        """
        new = {use for use, (state, _) in zip(uses, states, strict=True) if not state}
        if self.ready and not (new and self.few) and not any(difference for _, difference in states):
            return "cicc"
        new -= {"", *self._compared}
        if self._off or not self.few or not new or len(usable_cores()) == 1:
            return "nvcc"
        self._compared |= new
        return "both"

    async def _run(self) -> None:
        try:
            self._settle(await self.process.call(SERVICE_LISTEN, self._request))
            if self.ready and self.process.worker is not None:
                raise await self.process.worker.ended()
        except (WorkerError, OSError) as error:
            output = getattr(error, "detail", "").strip().splitlines()
            self._settle("; ".join((f"the compile service ended: {error}", *output[-1:])))

    def _settle(self, broken: str) -> None:
        """From now on use the service, or use nvcc if `broken` gives a reason."""
        self.ready, self.why = not broken, f"nvcc, because {broken}" if broken else self.why
        self.wake()
