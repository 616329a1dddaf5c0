"""Worker processes of one run, forked by the fork server, and waiting for what the machine is short of."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, get_args

import anyio
import msgspec
from anyio.abc import TaskGroup

from atune.engine.interfaces import ignored
from atune.errors import (
    MachineError,
    RemoteError,
    ServerLost,
    WorkerError,
    WorkerLost,
    WorkerTimeout,
    WorkloadError,
    translated,
)
from atune.model.folders import CACHE_VARIABLE, TILELANG_FOLDER, cache_folder, made_folder
from atune.workers.processes.messages import BEGIN, LOAD, WRITTEN, Session
from atune.workers.processes.pool import ForkServer
from atune.workers.processes.server import ForkServerProcess, parked, started, taken
from atune.workers.processes.worker import CANCEL_S, Worker
from atune.workers.system.resources import Resource, ShortOf, shortage_in, shortage_of, what_to_do
from atune.workload.pickling import FileRef, WorkloadRef

T = TypeVar("T")

LOAD_TIMEOUT_S = 300.0
"""For loading the user's file and for making a device's context. A slow machine needs far less."""


def process_folders(run_dir: str) -> dict[str, str]:
    """Make the folders that the processes of a run write to, and return their environment variables."""
    return {
        "TMPDIR": made_folder(run_dir, "tmp"),
        TILELANG_FOLDER: made_folder(run_dir, "tilelang"),
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
        self._env: dict[str, str]
        self._background: TaskGroup
        self._forked: list[Worker] = []
        self._loaded_as = ""
        """The fingerprint of the workload in the run's first worker."""
        self._programs = "" if isinstance(workload, FileRef) else workload.loaded_as
        self._known = known or self._programs
        self._began = time.time()

    def attach(
        self, server: ForkServer, run_dir: str, background: TaskGroup, warn: Callable[[str], None] = ignored
    ) -> None:
        """Fork from `server` from now on. The workers write to `run_dir`.

        `background` ends with the run. `warn` is told, once, if the workers load other work than the program has.
        """
        self._server, self._env, self._background, self._warn = server, process_folders(run_dir), background, warn

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

    async def loaded(self, role: str, session: Session, *, cpus: Sequence[int] | None = None, nice: int = 0) -> Worker:
        """Fork a compile worker, and load the session and the workload in it. No candidate's deadline covers this."""

        async def load() -> Worker:
            worker = await self.spawn(role, cpus=cpus, nice=nice)
            try:
                await worker.call(BEGIN, msgspec.msgpack.encode(session), LOAD_TIMEOUT_S)
                await self.agree(worker, (await worker.call(LOAD, b"", LOAD_TIMEOUT_S)).decode())
            except (WorkerError, WorkloadError):
                await worker.kill()
                raise
            return worker

        return await self.again_if_killed(load)

    @asynccontextmanager
    async def asked(self, role: str) -> AsyncGenerator[Worker, None]:
        """Fork a worker, and kill it afterwards, because the user's code may have started anything in it."""
        worker = await self.spawn(role)
        try:
            yield worker
        finally:
            self._background.start_soon(worker.kill)  # nobody waits until it is reaped

    async def ask_once(self, role: str, entry: str, payload: bytes) -> bytes:
        """Return the answer of a new worker, which loads the workload."""

        async def ask() -> bytes:
            async with self.asked(role) as worker:
                return await worker.call(entry, payload, LOAD_TIMEOUT_S)

        return await self.again_if_killed(ask)

    async def again_if_killed(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Load the workload with `ask`. Retry once if the process was killed from outside.

        A lost fork server says nothing about the workload: retry too, and `spawn` raises at the second loss. Raises
        `WorkloadError` if the workload's code ends or hangs its process, and `WorkerError` if a second one is killed.
        """
        lost = False
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
                if lost:
                    message = f"the worker that loads {self.what} was lost twice: {how_it_ended(error)}"
                    raise WorkerError(message, error.detail) from error
                lost = True
            except WorkerTimeout as error:
                raise WorkloadError(f"loading {self.what} failed: {error}\n{error.detail}".strip()) from error


def how_it_ended(error: WorkerLost) -> str:
    """Return how a worker ended, without its name, so that failures of one kind can be counted together."""
    return str(error).rpartition(": ")[2]


PAUSES_S = (0.5, 2.0, 8.0)
"""Successive waits, in seconds, for a resource that the machine is short of."""


class Patience:
    """Retries work that failed because the machine was short of a resource. `folder`: the folder of the run's files."""

    def __init__(self, folder: str, warn: Callable[[str], None]) -> None:
        self.folder, self.warn = folder, warn
        self._warned_of: set[Resource] = set()

    async def until_it_works(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`. Raises `MachineError` if the shortage lasts."""
        for pause_s in (*PAUSES_S, None):
            try:
                return await attempt()
            except (OSError, WorkerError) as error:
                if (short_of := shortage(error)) is None:
                    raise
                if pause_s is None:
                    raise machine_error(short_of, self.folder) from error
            if short_of not in self._warned_of:
                self._warned_of.add(short_of)
                self.warn(f"waiting, up to {sum(PAUSES_S):g} s at a time: {what_to_do(short_of, self.folder)}")
            await anyio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")


def machine_error(short_of: Resource, folder: str) -> MachineError:
    """Return the error that ends a run for want of a resource. `folder` holds the run's files."""
    return MachineError(
        f"{what_to_do(short_of, folder)}. What was measured stays, and `atune resume JOURNAL` continues the run"
    )


def shortage(error: OSError | WorkerError) -> Resource | None:
    """Return the resource that the machine is short of, from a worker's or the system's error. None: another cause."""
    if isinstance(error, OSError):
        return shortage_of(error)
    if isinstance(error, RemoteError):
        if error.kind != ShortOf.__name__:
            return shortage_in(str(error)) if str(error).startswith("[Errno ") else None
        named = str(error).partition(":")[0]
        return next((one for one in get_args(Resource) if one == named), None)
    return shortage_in(str(error)) if "did not start" in str(error) else None
