"""Worker processes of one run, forked by the fork server, and what runs at the same time share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from atune.engine.interfaces import ignored
from atune.errors import RemoteError, ServerLost, WorkerError, WorkerLost, WorkerTimeout, WorkloadError, translated
from atune.model.folders import CACHE_VARIABLE, cache_folder, made_folder
from atune.workers.local.retry import shortage
from atune.workers.processes.messages import BEGIN, LOAD, WRITTEN, Session
from atune.workers.processes.pool import ForkServer
from atune.workers.processes.server import ForkServerProcess, parked, started, taken
from atune.workers.processes.worker import CANCEL_S, Worker
from atune.workload.pickling import FileRef, WorkloadRef

T = TypeVar("T")

LOAD_TIMEOUT_S = 300.0
"""For loading the user's file and for making a device's context. A slow machine needs far less."""


def process_folders(run_dir: str) -> dict[str, str]:
    """Make the folders that the processes of a run write to, and return their environment variables."""
    return {
        "TMPDIR": made_folder(run_dir, "tmp"),
        "TILELANG_CACHE_DIR": made_folder(run_dir, "tilelang"),
        CACHE_VARIABLE: str(cache_folder()),
    }


@asynccontextmanager
async def fork_server(warn: Callable[[str], None] = ignored) -> AsyncGenerator[ForkServer, None]:
    """Start the fork server, or take the warm one that the previous run left. `warn` is told of a lost server."""

    def again() -> ForkServerProcess:
        process = started()
        warn("the fork server was lost: another starts, and interrupted work is repeated")
        return process

    async with ForkServer(taken(), park=parked.park, again=again) as server:
        yield server


class Workers:
    """Forks the workers of one run from the fork server given to `attach`.

    `workload`: the reference that they load. `known`: its fingerprint in this program; empty if it is unknown.
    """

    def __init__(self, workload: WorkloadRef, known: str = "") -> None:
        self.what = workload.origin if isinstance(workload, FileRef) else "the workload"
        """The workload, for messages."""
        self._server: ForkServer
        self._warn: Callable[[str], None] = ignored
        self._env: dict[str, str] = {}
        self._background: TaskGroup | None = None
        self._forked: list[Worker] = []
        self._loaded_as = ""
        """The fingerprint of the workload in the run's first worker."""
        self._programs = "" if isinstance(workload, FileRef) else workload.loaded_as
        self._known = known or self._programs
        self._began = time.time()

    def attach(
        self,
        server: ForkServer,
        env: Mapping[str, str] | None = None,
        background: TaskGroup | None = None,
        warn: Callable[[str], None] = ignored,
    ) -> None:
        """Fork from `server` from now on, with `env` added to its environment.

        `background` runs the work of `start_soon` and ends with the run. None: `start_soon` starts nothing. `warn` is
        told, once, if the workers load other work than the program has.
        """
        self._server, self._env, self._background, self._warn = server, dict(env or {}), background, warn

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Start `work` in the background. Returns false without a background task group."""
        if self._background is None:
            return False
        self._background.start_soon(work)
        return True

    async def spawn(
        self, role: str, *, env: Mapping[str, str] | None = None, cpus: Sequence[int] | None = None, nice: int = 0
    ) -> Worker:
        """Fork a worker of this run."""
        worker = await self._server.spawn(role, env={**self._env, **(env or {})}, cpus=cpus, nice=nice)
        self._forked = [one for one in (*self._forked, worker) if one.alive]
        return worker

    async def end(self) -> None:
        """Kill the workers of this run, and wait until they have ended. Shielded and bounded."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for worker in self._forked:
                    tasks.start_soon(worker.kill, CANCEL_S)
        self._forked = []

    def expect(self, loaded_as: str) -> None:
        """Set the fingerprint that the run's first worker loaded."""
        self._loaded_as = loaded_as

    async def agree(self, worker: Worker, loaded_as: str) -> None:
        """Raise `WorkloadError`, naming the edited files, if `worker` loaded another workload than the first one.

        The program's own workload counts, too, if a file that it imports was written since the run began.
        """
        self._loaded_as = self._loaded_as or loaded_as
        if loaded_as == self._loaded_as and loaded_as == (self._known or loaded_as):
            return
        reply = await worker.call(WRITTEN, msgspec.msgpack.encode(self._began), LOAD_TIMEOUT_S)
        written = msgspec.msgpack.decode(reply, type=list[str])
        if loaded_as == self._loaded_as and not written:
            if self._programs:
                self._warn(
                    f"the workers loaded {self.what} as other work than this program has. The program changed a global "
                    "that the kernel uses, or a file that its modules read was edited. The result is for the workers' "
                    "work; pass such values as arguments, or restart the program"
                )
                self._warn = ignored
            return
        cause = "none of its Python files was written since: something else that it reads while loading changed"
        if written:
            cause = f"written since: {', '.join(written)}"
        raise WorkloadError(
            f"{self.what} loads as other work than at the run's start ({cause}). A run measures one version. Earlier "
            "measurements stay in the journal: undo the change and resume, or tune again with another journal"
        )

    @staticmethod
    async def begin(worker: Worker, session: Session) -> None:
        """Send the session to a new worker."""
        await worker.call(BEGIN, msgspec.msgpack.encode(session), LOAD_TIMEOUT_S)

    async def loaded(self, role: str, session: Session, *, cpus: Sequence[int] | None = None, nice: int = 0) -> Worker:
        """Fork a compile worker, and load the session and the workload in it. No candidate's deadline covers this."""

        async def load() -> Worker:
            worker = await self.spawn(role, cpus=cpus, nice=nice)
            try:
                await self.begin(worker, session)
                await self.agree(worker, (await worker.call(LOAD, b"", LOAD_TIMEOUT_S)).decode())
            except (WorkerError, WorkloadError):
                await worker.kill()
                raise
            return worker

        return await self.again_if_killed(load)

    async def ask_once(self, role: str, entry: str, payload: bytes) -> bytes:
        """Ask a new worker and kill it afterwards, because the user's code may have started anything in it."""

        async def ask() -> bytes:
            worker = await self.spawn(role)
            try:
                reply = await worker.call(entry, payload, LOAD_TIMEOUT_S)
            except BaseException:
                await worker.kill()
                raise
            if not self.start_soon(worker.kill):  # in the background, nobody waits until it is reaped
                await worker.kill()
            return reply

        return await self.again_if_killed(ask)

    async def again_if_killed(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Load the workload with `ask`. Retry once if the process was killed from outside.

        A lost fork server says nothing about the workload: retry too, and `spawn` raises at the second loss. Raises
        `WorkloadError` if the workload's code ends or hangs its process, and `WorkerError` if a second one is killed.
        """
        last = False
        while True:
            try:
                return await ask()
            except RemoteError as error:
                if shortage(error) is not None:
                    raise
                raise translated(error) from error
            except ServerLost:
                continue
            except WorkerLost as error:
                if not error.outside:
                    raise WorkloadError(f"loading {self.what} failed: {error}\n{error.detail}".strip()) from error
                if last:
                    message = f"the worker that loads {self.what} was lost twice: {how_it_ended(error)}"
                    raise WorkerError(message, error.detail) from error
                last = True
            except WorkerTimeout as error:
                raise WorkloadError(f"loading {self.what} failed: {error}\n{error.detail}".strip()) from error


def how_it_ended(error: WorkerLost) -> str:
    """Return how a worker ended, without its name, so that failures of one kind can be counted together."""
    return str(error).rpartition(": ")[2]
