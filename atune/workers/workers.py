"""Worker processes of one run, forked by the fork server, waiting for what is short, and questions about a space."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar, get_args

import anyio
import msgspec
from anyio.abc import TaskGroup

import atune
from atune.engine.interfaces import ignored
from atune.errors import (
    MachineError,
    RemoteError,
    ServerLost,
    SpaceError,
    WorkerError,
    WorkerLost,
    WorkerTimeout,
    WorkloadError,
    translated,
)
from atune.model.candidate import Config, with_tuples
from atune.model.folders import CACHE_VARIABLE, TILELANG_FOLDER, cache_folder, made_folder, run_folder
from atune.workers.messages import (
    BEGIN,
    LIST_SPACE,
    LOAD_SPACE,
    WRITTEN,
    LoadSpace,
    Session,
    SpacePart,
)
from atune.workers.pool import CANCEL_S, ForkServer, Worker
from atune.workers.resources import Resource, ShortOf, shortage_in, shortage_of, what_to_do
from atune.workers.server import ForkServerProcess, parked, started, taken
from atune.workers.waiting import background
from atune.workload.pickling import FileRef, WorkloadRef
from atune.workload.workload import WorkloadSpec

T = TypeVar("T")

FILE_TIMEOUT_S = 120.0
"""Seconds for running the user's file, including its imports."""
ANSWER_TIMEOUT_S = 60.0
"""Seconds for one call of a constraint, of a function of an axis or of the configurations, or of a generator."""
NO_ANSWER = (
    "had not answered after {:g} s and was ended. It hangs or is far too slow: it is called once for each configuration"
)

PAUSES_S = (0.5, 2.0, 8.0)
"""Successive waits, in seconds, for a resource that the machine is short of."""
STAYS = "What was measured stays, and `atune resume JOURNAL` continues the run"


def process_folders(run_dir: str) -> dict[str, str]:
    """Make the folders that the processes of a run write to, and return their environment variables."""
    return {
        "TMPDIR": made_folder(run_dir, "tmp"),
        TILELANG_FOLDER: made_folder(run_dir, "tilelang"),
        CACHE_VARIABLE: str(cache_folder()),
    }


def fork_server(warn: Callable[[str], None] = ignored) -> ForkServer:
    """Start the fork server, or take the warm one that the previous run left. `warn` is told of a lost server."""

    def again() -> ForkServerProcess:
        process = started()
        warn("the fork server was lost: another starts, and interrupted work is repeated")
        return process

    return ForkServer(taken(), park=parked.park, again=again)


class Workers:
    """Forks the workers of one run from the fork server given to `attach`.

    `workload`: the reference that they load. `known`: its fingerprint in this program; empty if it is unknown.
    """

    def __init__(self, workload: WorkloadRef, known: str = "") -> None:
        self.what = workload.origin if isinstance(workload, FileRef) else "the workload"
        """The workload, for messages."""
        self.run_dir = ""
        self.warn: Callable[[str], None] = ignored
        self.server: ForkServer
        self._env: dict[str, str]
        self._background: TaskGroup
        self._forked: list[Worker] = []
        self.loaded_as = ""
        """The fingerprint of the workload in the run's first worker."""
        self._programs = "" if isinstance(workload, FileRef) else workload.loaded_as
        self._known = known or self._programs
        self._began = time.time()
        self._warned_of = set[str]()
        self.alone = anyio.Lock()
        """Held by a job that is repeated because it got hardly any CPU, or because the fork server was lost."""

    def attach(
        self, server: ForkServer, run_dir: str, background: TaskGroup, warn: Callable[[str], None] = ignored
    ) -> None:
        """Fork from `server` from now on. The workers write to `run_dir`. `background` ends with the run."""
        self.server, self._env, self._background = server, process_folders(run_dir), background
        self.run_dir, self.warn = run_dir, warn

    def warn_once(self, of: str, message: str) -> None:
        if of not in self._warned_of:
            self._warned_of.add(of)
            self.warn(message)

    async def spawn(
        self, role: str, *, env: Mapping[str, str] | None = None, cpus: Sequence[int] | None = None, nice: int = 0
    ) -> Worker:
        worker = await self.server.spawn(role, env={**self._env, **(env or {})}, cpus=cpus, nice=nice)
        self._forked = [one for one in (*self._forked, worker) if one.alive]
        return worker

    async def end(self) -> None:
        """Kill the workers of this run, and wait until they have ended. Shielded and bounded."""
        await killed(self._forked)
        self._forked = []

    def adopt(self, worker: Worker) -> None:
        """Have `end` kill a worker that another run of the set forked."""
        self._forked.append(worker)

    def release(self, worker: Worker) -> None:
        """Leave a worker to other runs of the set."""
        self._forked.remove(worker)

    async def agree(self, worker: Worker, loaded_as: str) -> None:
        """Raise `WorkloadError`, naming the edited files, if `worker` loaded another workload than the first one.

        The program's own workload counts, too, if a file that it imports was written since the run began.
        """
        self.loaded_as = self.loaded_as or loaded_as
        if loaded_as == self.loaded_as and loaded_as == (self._known or loaded_as):
            return
        reply = await worker.call(WRITTEN, msgspec.msgpack.encode(self._began))
        written = msgspec.msgpack.decode(reply, type=list[str])
        if loaded_as == self.loaded_as and not written:
            if self._programs:
                self.warn_once(
                    "other work",
                    f"the workers loaded {self.what} as other work than this program has. The program changed a global "
                    "that the kernel uses, or a file that its modules read was edited. The result is for the workers' "
                    "work; pass such values as arguments, or restart the program",
                )
            return
        cause = "none of its Python files was written since: something else that it reads while loading changed"
        if written:
            cause = f"written since: {', '.join(written)}"
        raise WorkloadError(
            f"{self.what} loads as other work than at the run's start ({cause}). A run measures one version. Earlier "
            "measurements stay in the journal: undo the change and resume, or tune again with another journal"
        )

    async def begun(self, role: str, session: Session, nice: int) -> Worker:
        """Fork a compile worker, which loads the workload if the session says so."""

        async def begin() -> Worker:
            worker = await self.spawn(role, nice=nice)
            try:
                if loaded_as := await worker.call(BEGIN, msgspec.msgpack.encode(session)):
                    await self.agree(worker, loaded_as.decode())
            except (WorkerError, WorkloadError):
                await worker.kill()
                raise
            return worker

        return await self.again_if_killed(begin)

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
                return await worker.call(entry, payload)

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
            except (WorkerLost, WorkerTimeout) as error:
                if isinstance(error, WorkerTimeout) or not error.outside:
                    raise WorkloadError(f"loading {self.what} failed: {error}\n{error.detail}".strip()) from error
                if lost:
                    message = f"the worker that loads {self.what} was lost twice: {how_it_ended(error)}"
                    raise WorkerError(message, error.detail) from error
                lost = True

    async def until_it_works(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`, which is repeated while the machine is short of a resource.

        Raises `MachineError` if the shortage lasts, or if files of the run were removed, so that no candidate is at
        fault. Where a device's memory stays short, raises the last attempt's error.
        """
        pauses_s = [*PAUSES_S]
        while True:
            try:
                found = await attempt()
                self._has(self.run_dir)
                return found
            except (OSError, WorkerError) as error:
                self._has((isinstance(error, FileNotFoundError) and error.filename) or self.run_dir)
                short_of = shortage(error)
                if short_of is None or (short_of == "device memory" and not pauses_s):
                    raise
                if not pauses_s:
                    raise machine_error(short_of, self.run_dir) from error
                advice = str(error) if short_of == "device memory" else what_to_do(short_of, self.run_dir)
            self.warn_once(short_of, f"waiting, up to {sum(PAUSES_S):g} s at a time: {advice}")
            await anyio.sleep(pauses_s.pop(0))

    def _has(self, path: str) -> None:
        if not os.path.exists(path):
            what = f"{path} was removed while the run used it: keep it from what clears {tempfile.gettempdir()}"
            raise MachineError(f"{what}, or set TMPDIR to another place. {STAYS}")


async def killed(workers: Iterable[Worker]) -> None:
    """Kill `workers`, and wait until they have ended. Shielded and bounded."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.kill, CANCEL_S)


def how_it_ended(error: WorkerLost) -> str:
    """Return how a worker ended, without its name, so that failures of one kind can be counted together."""
    return str(error).rpartition(": ")[2]


def machine_error(short_of: Resource, folder: str) -> MachineError:
    """Return the error that ends a run for want of a resource. `folder` holds the run's files."""
    return MachineError(f"{what_to_do(short_of, folder)}. {STAYS}")


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


# ---- the process that evaluates a workload's space, or answers a question about a file: it isolates the user's code


async def described(workers: Workers, ref: WorkloadRef, known: WorkloadSpec | None, seed: int) -> WorkloadSpec:
    """Load the workload in a process of its own, and describe its space, of which `seed` draws if it is large.

    `known`: the description without the space if the caller has it; otherwise the worker makes it. Raises
    `WorkloadError` if loading fails or hangs. Raises `SpaceError`, with the function's name, if a function of the space
    fails, hangs or ends the process.
    """
    return await workers.again_if_killed(partial(_described, workers, ref, known, seed))


async def _described(workers: Workers, ref: WorkloadRef, known: WorkloadSpec | None, seed: int) -> WorkloadSpec:
    asked, configs = LoadSpace(ref, known, FILE_TIMEOUT_S), list[Config]()
    async with workers.asked("describe") as worker:
        try:
            await worker.call(LOAD_SPACE, msgspec.msgpack.encode(asked), FILE_TIMEOUT_S)
        except WorkerTimeout as error:
            where = f": it hangs in {place}" if (place := _place(error.detail)) else ""
            raise WorkloadError(
                f"loading {workers.what} was ended after {FILE_TIMEOUT_S:g} s{where}. Several processes load a "
                'workload\'s file, which only defines the workload: put slow code under if __name__ == "__main__":'
            ) from error
        while True:
            part = await _next_part(worker, seed, workers.what)
            configs += part.configs
            if part.spec is not None:
                spec = part.spec
                return msgspec.structs.replace(spec, configs=tuple(configs), arguments=with_tuples(spec.arguments))


async def _next_part(worker: Worker, seed: int, what: str) -> SpacePart:
    payload = msgspec.msgpack.encode((seed, ANSWER_TIMEOUT_S))
    try:
        return msgspec.msgpack.decode(await worker.call(LIST_SPACE, payload, ANSWER_TIMEOUT_S), type=SpacePart)
    except WorkerTimeout as error:
        who = _place(error.detail) or "a constraint, or another function of the space"
        raise SpaceError(f"the space of {what}: {who}, {NO_ANSWER.format(ANSWER_TIMEOUT_S)}") from error
    except WorkerLost as error:
        if error.outside or isinstance(error, ServerLost):
            raise
        output = f"\n{error.detail}".rstrip()
        raise SpaceError(f"a function of the space of {what} ended the process: {error}{output}") from error


_STACK_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _place(stack: str) -> str:
    """Return which of the user's functions was called and where it hangs, by faulthandler's `stack`, or nothing."""
    ours = os.path.dirname(atune.__file__) + os.sep
    for thread in reversed(stack.split("Thread 0x")):
        frames = [frame for frame in _STACK_LINE.findall(thread) if not frame[0].startswith("<frozen ")]
        users = list(takewhile(lambda frame: not frame[0].startswith(ours), frames))  # the innermost first
        if users and len(users) < len(frames):
            places = [f"{name} ({Path(file).name}, line {line})" for file, line, name in users]
            return places[0] if len(places) == 1 else f"{places[-1]}, in {places[0]}"
    return ""


async def counted(ref: FileRef, seed: int) -> WorkloadSpec:
    """Return the description of a workload and its space. Raises as `described`."""
    with run_folder() as run_dir:
        async with fork_server() as server, background(cancel=False) as tasks:
            workers = Workers(ref)
            workers.attach(server, run_dir, tasks)
            return await described(workers, ref, None, seed)
