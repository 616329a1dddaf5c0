"""The worker processes of a run, the waits for scarce resources, and the process that lists a workload's space."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
    warn_caller,
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
"""Seconds that running the user's file may take, including the file's imports."""
ANSWER_TIMEOUT_S = 60.0
"""Seconds that a call of a constraint, a generator, or the function of an axis or of the configurations may take."""
NO_ANSWER = (
    "did not answer within {:g} s and was ended. It hangs or is too slow, because it is called for every configuration"
)

PAUSES_S = (0.5, 2.0, 8.0)
"""Successive pauses, in seconds, before retries while the machine is short of a resource."""
STAYS = "The journal keeps all measurements, and `atune resume JOURNAL` continues the run"


def process_folders(run_dir: str) -> dict[str, str]:
    """Make the folders to which a run's processes write, and return the environment variables that name them."""
    return {
        "TMPDIR": made_folder(run_dir, "tmp"),
        TILELANG_FOLDER: made_folder(run_dir, "tilelang"),
        CACHE_VARIABLE: str(cache_folder()),
    }


def fork_server(warn: Callable[[str], None] = ignored) -> ForkServer:
    """Start the fork server, or take the warm fork server of the previous run. Call `warn` if the server is lost."""

    def again() -> ForkServerProcess:
        process = started()
        warn("the fork server was lost. Another one starts, and atune repeats the interrupted work")
        return process

    return ForkServer(taken(), park=parked.park, again=again)


class Workers:
    """Forks the workers of a run from the fork server that `attach` gets.

    `workload`: the reference that the workers load. `known`: the workload's fingerprint in this program; empty if
    unknown.
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
        """The workload's fingerprint in the first worker of the run that loaded the workload."""
        self.differs = ""
        """A warning that the workers and this program have different fingerprints of the workload; empty if not."""
        self._programs = "" if isinstance(workload, FileRef) else workload.loaded_as
        self._known = known or self._programs
        self._began = time.time()
        self._warned_of = set[str]()
        self.alone = anyio.Lock()
        """A lock for jobs that are repeated because they got hardly any CPU time or lost the fork server."""

    def attach(
        self, server: ForkServer, run_dir: str, background: TaskGroup, warn: Callable[[str], None] = ignored
    ) -> None:
        """From now on, fork workers from `server`. The workers write to `run_dir`. `background` ends with the run."""
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
        self._forked = [forked for forked in (*self._forked, worker) if forked.alive]
        return worker

    async def end(self) -> None:
        """Kill the workers of this run, and wait until they have ended. Shielded from cancellation, and bounded."""
        await killed(self._forked)
        self._forked = []

    def adopt(self, worker: Worker) -> None:
        """Have `end` also kill `worker`, which another run of the set has forked."""
        self._forked.append(worker)

    def release(self, worker: Worker) -> None:
        """Leave a worker to other runs of the set."""
        self._forked.remove(worker)

    async def agree(self, worker: Worker, loaded_as: str) -> None:
        """Raise `WorkloadError`, naming edited files, if `worker` and the first worker loaded different workloads.

        Also raise `WorkloadError` if the program itself has a different workload, and a workload file was written
        during the run.
        """
        self.loaded_as = self.loaded_as or loaded_as
        if loaded_as == self.loaded_as and loaded_as == (self._known or loaded_as):
            return
        reply = await worker.call(WRITTEN, msgspec.msgpack.encode(self._began))
        written = msgspec.msgpack.decode(reply, type=list[str])
        if loaded_as == self.loaded_as and not written:
            first = not self.differs
            self.differs = (
                f"the workers loaded another version of {self.what} than this program has, because the program changed "
                "a global that the kernel uses, or a file that its modules read was edited. The result is for the "
                "workers' version. Pass changed values as arguments, or restart the program"
            )
            if first and self._programs:
                self.warn(self.differs)
                with suppress(Warning):  # the program may turn warnings into errors
                    warn_caller(self.differs, RuntimeWarning)
            return
        cause = "none of its Python files was written since, so something else that it reads while loading changed"
        if written:
            cause = f"written since: {', '.join(written)}"
        raise WorkloadError(
            f"{self.what} has changed since the run's start ({cause}), and a run measures only one version. The "
            "journal keeps earlier measurements: undo the change and resume, or tune again with another journal"
        )

    async def begun(self, role: str, session: Session, nice: int) -> Worker:
        """Fork a compile worker. If `session.load` is set, the worker loads the workload."""

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
        """Fork a worker, and kill it afterwards, because the user's code may have started processes in the worker."""
        worker = await self.spawn(role)
        try:
            yield worker
        finally:
            self._background.start_soon(worker.kill)  # without waiting until it is reaped

    async def ask_once(self, role: str, entry: str, payload: bytes) -> bytes:
        """Call `entry` in a new worker, and return the answer."""

        async def ask() -> bytes:
            async with self.asked(role) as worker:
                return await worker.call(entry, payload)

        return await self.again_if_killed(ask)

    async def again_if_killed(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Load the workload with `ask`, and return the result. Retry once if the process was killed from outside.

        Also retry if the fork server was lost, because the workload did not cause the loss; at the second loss, `spawn`
        raises an error. Raises `WorkloadError` if the workload's code hangs or ends its process, and `WorkerError` if a
        second process is killed.
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
        """Return the result of `attempt`. While the machine is short of a resource, wait and repeat `attempt`.

        Raises `MachineError` if the shortage lasts. Also raises `MachineError` if files of the run were removed, so
        that no candidate is blamed. If a device's memory stays short, raises the error of the last attempt.
        """
        pauses_s = [*PAUSES_S]
        while True:
            try:
                result = await attempt()
                self._check_exists(self.run_dir)
                return result
            except (OSError, WorkerError) as error:
                self._check_exists((isinstance(error, FileNotFoundError) and error.filename) or self.run_dir)
                short_of = shortage(error)
                if short_of is None or (short_of == "device memory" and not pauses_s):
                    raise
                if not pauses_s:
                    raise machine_error(short_of, self.run_dir) from error
                advice = str(error) if short_of == "device memory" else what_to_do(short_of, self.run_dir)
            self.warn_once(short_of, f"waiting for up to {sum(PAUSES_S):g} s: {advice}")
            await anyio.sleep(pauses_s.pop(0))

    def _check_exists(self, path: str) -> None:
        if not os.path.exists(path):
            remedy = f"stop programs that clear {tempfile.gettempdir()}, or set TMPDIR to another folder"
            raise MachineError(f"{path} was removed while the run used it: {remedy}. {STAYS}")


async def killed(workers: Iterable[Worker]) -> None:
    """Kill `workers`, and wait until the workers have ended. Shielded from cancellation, and bounded."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.kill, CANCEL_S)


def how_it_ended(error: WorkerLost) -> str:
    """Describe how a worker ended, without its name, so that failures of the same kind can be counted together."""
    return str(error).rpartition(": ")[2]


def machine_error(short_of: Resource, folder: str) -> MachineError:
    """Return the error that ends a run that lacks a resource. `folder`: where the run's files are."""
    return MachineError(f"{what_to_do(short_of, folder)}. {STAYS}")


def shortage(error: OSError | WorkerError) -> Resource | None:
    """Return the resource whose shortage caused `error` in a worker or the system; None if there was no shortage."""
    if isinstance(error, OSError):
        return shortage_of(error)
    if isinstance(error, RemoteError):
        if error.kind != ShortOf.__name__:
            return shortage_in(str(error)) if str(error).startswith("[Errno ") else None
        named = str(error).partition(":")[0]
        return next((resource for resource in get_args(Resource) if resource == named), None)
    return shortage_in(str(error)) if "did not start" in str(error) else None


# ---- the process that describes a workload and its space; separate from the program, as it runs the user's code


async def described(workers: Workers, ref: WorkloadRef, known: WorkloadSpec | None, seed: int) -> WorkloadSpec:
    """Load the workload in a separate process, and return the workload's description with the space.

    `known`: the description without the space; if None, the worker makes it. `seed`: the seed for drawing points of a
    large space. Raises `WorkloadError` if loading fails or hangs. If a function of the space fails, hangs or ends the
    process, raises `SpaceError` with the function's name.
    """
    return await workers.again_if_killed(partial(_described, workers, ref, known, seed))


async def _described(workers: Workers, ref: WorkloadRef, known: WorkloadSpec | None, seed: int) -> WorkloadSpec:
    asked, configs = LoadSpace(ref, known, FILE_TIMEOUT_S), list[Config]()
    async with workers.asked("describe") as worker:
        try:
            await worker.call(LOAD_SPACE, msgspec.msgpack.encode(asked), FILE_TIMEOUT_S)
        except WorkerTimeout as error:
            where = f" and hangs in {place}" if (place := _place(error.detail)) else ""
            raise WorkloadError(
                f"loading {workers.what} takes more than {FILE_TIMEOUT_S:g} s{where}. Several processes load a "
                'workload\'s file, which must only define the workload: put slow code under if __name__ == "__main__":'
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
        raise SpaceError(f"the space of {what}: {who} {NO_ANSWER.format(ANSWER_TIMEOUT_S)}") from error
    except WorkerLost as error:
        if error.outside or isinstance(error, ServerLost):
            raise
        output = f"\n{error.detail}".rstrip()
        raise SpaceError(f"a function of the space of {what} ended the process: {error}{output}") from error


_STACK_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _place(stack: str) -> str:
    """Name the user's function that hangs and the function's place, from faulthandler's `stack`; empty if unknown."""
    ours = os.path.dirname(atune.__file__) + os.sep
    for thread in reversed(stack.split("Thread 0x")):
        frames = [frame for frame in _STACK_LINE.findall(thread) if not frame[0].startswith("<frozen ")]
        users = list(takewhile(lambda frame: not frame[0].startswith(ours), frames))  # the innermost first
        if users and len(users) < len(frames):
            places = [f"{name} ({Path(file).name}, line {line})" for file, line, name in users]
            return places[0] if len(places) == 1 else f"{places[-1]}, in {places[0]}"
    return ""


async def counted(ref: FileRef, seed: int) -> WorkloadSpec:
    """Return the description of a workload with its space. Raises the errors of `described`."""
    with run_folder() as run_dir:
        async with fork_server() as server, background(cancel=False) as tasks:
            workers = Workers(ref)
            workers.attach(server, run_dir, tasks)
            return await described(workers, ref, None, seed)
