"""A compile worker on this machine, the artifact store as a run uses it, and the compile service."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from atune.engine.interfaces import ignored
from atune.engine.run_state import background
from atune.errors import (
    RemoteError,
    ServerLost,
    UsageError,
    WorkerError,
    WorkerLost,
    WorkerTimeout,
    translated,
)
from atune.model.artifact import Artifact, Built, Compared, Elaborated, Failure, Lowered, Roles
from atune.model.device import Target, parse_target
from atune.model.folders import made_folder
from atune.model.jobs import (
    HOPELESS,
    A,
    BuildJob,
    CompareJob,
    ElaborateJob,
    FindJob,
    GroupFailed,
    Job,
    LowerJob,
    RolesJob,
    decoded,
)
from atune.model.settings import CompileSettings
from atune.workers.local.workers import Workers, how_it_ended, process_folders, shortage
from atune.workers.processes.messages import COMPILE, SERVICE_HEADER, SERVICE_LISTEN, Session
from atune.workers.processes.pool import ForkServer, Worker
from atune.workers.processes.server import started
from atune.workers.storage.artifact_store import ArtifactStore, key_in, recall
from atune.workers.system.resources import CompilerKilled, ShortOf, space_is_short, usable_cores

T = TypeVar("T")

COMPILE_NICE = 5
"""Niceness of the compile workers. The user's own programs and the device processes take precedence."""

ELABORATE_S = 20.0
"""Most seconds for one elaboration, because the whole run waits for it. `compile_timeout_s` counts if it is less.
A candidate that takes longer stays unknown, and its lowering has the whole deadline."""

COMPILING = "compiling"
DOING: dict[type, str] = {
    LowerJob: "lowering", ElaborateJob: "elaborating", RolesJob: "elaborating",
    BuildJob: COMPILING, CompareJob: COMPILING,
}  # fmt: skip
"""Activity of a process by job, for messages."""
SPOILED = (
    "candidate {index} failed in a process where others had run, and not in a fresh one: one of them changes what its "
    "process shares, such as os.environ. Such failures are repeated"
)
CODE = ""
"""The process that runs candidates' code, among those of a compile worker."""
PATIENCE = 4.0
"""How many times as long a job may take where a deadline passed while it got hardly any CPU."""


class LocalCompileWorker:
    """One compile worker: a process that runs candidates' code, one that builds, and a clean one.

    The first is not believed where another candidate's code ran before, which may have changed the interpreter. Of what
    fails there, the answer of a fork of the clean one counts. Each starts when it is needed, also after it died.
    """

    def __init__(self, workers: Workers, session: Session, store: RunStore, service: CompileService, name: str) -> None:
        self.workers, self.session, self.store, self.service = workers, session, store, service
        self.name = name
        self._processes = dict[str, Worker]()
        """The processes by what they do: see `_process`."""
        self._ran = set[int]()
        """The candidates whose code ran in the process that runs it."""
        self._printed = ""
        """What the last job printed."""
        self._libraries = 0

    async def run(self, job: Job[A]) -> A:
        return cast(A, await getattr(self, f"_{job.name}")(job))

    async def _roles(self, job: RolesJob) -> Roles | Failure:
        return await self._try(job, job.candidate.index, min(self._limit_s, ELABORATE_S))

    async def _lower(self, job: LowerJob) -> Lowered | Failure:
        anew = job.anew or self.store.store is None
        lowered = await self._try(LowerJob(job.candidate, anew=anew), job.candidate.index)
        lowered = msgspec.structs.replace(lowered, printed=self._printed)
        if isinstance(lowered, Failure) or lowered.blob or anew:
            return lowered
        kept = await self.store.find(lowered)
        return lowered if kept is not None else await self._lower(LowerJob(job.candidate, anew=True))

    async def _elaborate(self, job: ElaborateJob) -> list[Elaborated | Failure] | GroupFailed:
        limit = min(self._limit_s, ELABORATE_S)
        answer = await self._try(job, job.candidates[0].index, limit)
        if not isinstance(answer, Failure):
            return answer
        if answer.kind == "timeout" and limit < self._limit_s:
            doubt = f"elaborating it takes more than {limit:g} s"
            answer = msgspec.structs.replace(answer, message=doubt, doubt=doubt)
        return _of_group(answer, len(job.candidates))

    async def _find(self, job: FindJob) -> Artifact | None:
        found = await self.store.find(job.lowered)
        if found is None:
            self.service.saw(job.lowered, self.session.target)  # only its first call decides
        return found

    async def _build(self, job: BuildJob) -> list[Built] | GroupFailed:
        """Compile a group. An earlier run lowered the members without a blob; these come from the store."""
        built = dict[int, Built]()
        for lowered in job.group:
            if not lowered.blob:
                gone = Failure(lowered.index, "codegen", "its library vanished from the artifact store; tune again")
                built[lowered.index] = await self.store.find(lowered) or gone
        if fresh := [lowered for lowered in job.group if lowered.blob]:
            answers = await self._compile(fresh, job)
            if isinstance(answers, GroupFailed):
                return answers
            built.update((one.index, one) for one in answers)
        return [built[lowered.index] for lowered in job.group]

    async def _compile(self, group: Sequence[Lowered], asked: BuildJob) -> list[Built] | GroupFailed:
        """Compile `group` into one library and store it. cicc builds it if no state of it is known to differ."""
        store, service = self.store, self.service
        use_service = service.ready and not asked.plain
        for lowered in group:
            use_service = use_service and not (await store.state(lowered.use))[1]
        job = msgspec.structs.replace(asked, group=tuple(group), path=self._new_library(), service=use_service)
        answers = await self._try(job, group[0].index, job.limit_s)
        if isinstance(answers, Failure):
            return _of_group(answers, len(group))
        assert not isinstance(answers, GroupFailed), "a process raises"
        built = [await self._known(one, lowered) for lowered, one in zip(group, answers, strict=True)]
        await store.keep([one for one in built if isinstance(one, Artifact)])
        for lowered, one in zip(group, built, strict=True):
            if isinstance(one, Artifact) and one.store_key:
                await store.keep_lowered(lowered, one.store_key)
        return [service.explain(one) if isinstance(one, Artifact) else one for one in built]

    async def _known(self, built: Built, lowered: Lowered) -> Built:
        """Return `built` with what is known of its compiler state, and without a key if it may not be stored."""
        if isinstance(built, Failure):
            return built
        compared = bool(built.state) and await self.store.state(lowered.use) == (built.state, "")
        key = built.store_key if lowered.storable else ""
        return msgspec.structs.replace(built, store_key=key, compared=compared)

    async def _compare(self, job: CompareJob) -> Compared | Failure:
        """Compile a candidate by nvcc and compare. A crash or a timeout is a `Failure`.

        Raises `WorkerLost` if the worker was killed from outside.
        """
        answer = await self._try(msgspec.structs.replace(job, path=self._new_library()), job.candidate.index)
        if isinstance(answer, Failure) and answer.doubt:
            raise WorkerLost(answer.message, answer.detail, outside=True)
        return answer

    async def _try(self, job: Job[A], index: int, limit_s: float | None = None) -> A | Failure:
        """Have a process do `job`, for at most `limit_s` or the settings' deadline.

        Return its answer, or why there is none, as a failure of candidate `index`. If the worker was killed from
        outside, the failure has a doubt, so that the work is repeated. Waits and calls a new process if the machine is
        short of a resource or the server was lost.
        """
        if DOING[type(job)] == COMPILING:
            return await self._once(job, index, limit_s, apart=isinstance(job, CompareJob))
        if CODE not in self._processes or not self._processes[CODE].alive:
            self._ran.clear()
        if index in self.workers.deadly:
            return await self._once(job, index, limit_s, apart=True)
        alone = self._ran <= {index}
        self._ran |= {one.index for one in job.candidates} if isinstance(job, ElaborateJob) else {index}
        try:
            answer = await self._once(job, index, limit_s)
        except UsageError:
            if alone:
                raise
        else:
            if alone or not _failed(answer):
                return answer
        again = await self._once(job, index, limit_s, apart=True)
        if not _failed(again):
            self.workers.warn_once("spoiled", SPOILED.format(index=index))
            await self._processes[CODE].kill()
        return again

    async def _once(
        self, job: Job[A], index: int, limit_s: float | None, *, apart: bool = False, starved: bool = False
    ) -> A | Failure:
        """Do as `_try`, in one process; `apart` in a fork of the clean one. `starved`: it had hardly any CPU before."""
        doing, most = DOING[type(job)], (limit_s or self._limit_s) * (PATIENCE if starved else 1)
        try:
            return decoded(job, await self.workers.until_it_works(lambda: self._call(job, most, apart)))
        except WorkerTimeout as error:
            if error.starved and not starved:
                async with self.workers.alone:
                    return await self._once(job, index, limit_s, apart=True, starved=True)
            if isinstance(job, BuildJob) and job.limit_s is not None:
                return Failure(index, "hopeless", HOPELESS.format(limit_s=job.limit_s), error.detail)
            return Failure(index, "timeout", f"{doing} ran past compile_timeout_s={self._limit_s:g}", error.detail)
        except ServerLost:  # a new server starts, or the next call raises the reason why not
            self.workers.deadly.add(index)
            return await self._once(job, index, limit_s, apart=apart or doing != COMPILING, starved=starved)
        except WorkerLost as error:
            how = how_it_ended(error)
            if not error.outside:
                return Failure(index, "crash", f"{doing} ended its process: {how}", error.detail)
            doubt = f"its compile worker was lost: {how}"
            return Failure(index, "worker_lost", f"{doing} was killed: {how}", error.detail, doubt)
        except RemoteError as error:
            if isinstance(found := translated(error), UsageError) and doing != COMPILING:
                raise found from error
            return Failure(index, "codegen" if doing == COMPILING else "lower", str(error), error.detail)

    async def _call(self, job: Job[Any], limit_s: float, apart: bool) -> bytes:
        """Call a process, which is started if there is none. Raises `WorkerLost` also if a compiler was killed."""
        worker = await self._process(job, apart)
        steps = 2 if isinstance(job, CompareJob) else 1  # it lowers and compiles
        try:
            return await worker.call(COMPILE + job.name, msgspec.msgpack.encode(job), steps * limit_s, apart=apart)
        except RemoteError as error:
            if error.kind == CompilerKilled.__name__:
                raise WorkerLost(str(error), error.detail, outside=True) from error
            if shortage(error) is not None:
                await worker.kill()  # it may hold the missing resource
            raise
        except WorkerLost as error:
            if not error.outside and space_is_short(self.session.run_dir):  # such as SIGBUS in a mapped file
                raise RemoteError(f"space: {error}", error.detail, ShortOf.__name__) from error
            raise
        finally:
            self._printed = worker.printed

    async def _process(self, job: Job[Any], apart: bool) -> Worker:
        """Return the process for a job. The clean one has the workload, which builds do not need."""
        does = "-builds" if isinstance(job, BuildJob) else "-clean" if apart else CODE
        worker = self._processes.get(does)
        if worker is None or not worker.alive:
            load = does != "-builds"
            worker = await self.workers.begun(self.name + does, self.session, load=load, nice=COMPILE_NICE)
            self._processes[does] = worker
        return worker

    @property
    def _limit_s(self) -> float:
        return self.session.compile.compile_timeout_s

    def _new_library(self) -> str:
        self._libraries += 1
        folder = made_folder(self.session.run_dir, "artifacts")
        return os.path.join(folder, f"{self.name}-{self._libraries}.so")


def _failed(answer: Any) -> bool:
    """Tell whether a candidate failed, not its process from outside or by time."""
    first = answer[0] if isinstance(answer, list) else answer
    return isinstance(first, Failure) and not first.doubt and first.kind != "timeout"


def _of_group(failure: Failure, members: int) -> list[Any] | GroupFailed:
    """Return the failure of one candidate, or that of a group of several."""
    return GroupFailed(failure.message, failure.doubt) if members > 1 else [failure]


class RunStore:
    """Finds artifacts of earlier runs and keeps those of this one, and knows its compiler states.

    What raises `OSError` is not found, or not kept, and `say` is told why: the store may be read-only, full or gone, or
    the next call may work. `tools`: the compilers as a part of the states; empty where cicc is not used.
    """

    def __init__(self, store: ArtifactStore | None = None, say: Callable[[str], None] = ignored) -> None:
        self.tools, self._say = "", say
        self.store = store
        """None where the run uses none."""
        self._states = dict[str, tuple[str, str]]()

    async def state(self, use: str) -> tuple[str, str]:
        """Return the state of sources of this `use`, and how cicc's code differs from nvcc's in it; empty if unknown.

        Reads the headers once for each use of them.
        """
        if not (use and self.tools):
            return "", ""
        if use not in self._states:
            found = await anyio.to_thread.run_sync(recall, self.tools, use, abandon_on_cancel=True)
            self._states[use] = found or ("", "")
        return self._states[use]

    async def find(self, lowered: Lowered) -> Artifact | None:
        """Return the artifact of the same code if the store has it. Then also keep what its kernel was lowered to."""
        if not lowered.storable:
            return None
        found = await self._do(lambda store: store.find(lowered.store_key, lowered.index))
        state, difference = ("", "") if found is not None else await self.state(lowered.use)
        if state and not difference:
            key = key_in(lowered.store_key, state)
            if (found := await self._do(lambda store: store.find(key, lowered.index))) is not None:
                found = msgspec.structs.replace(found, compared=True)
        if found is not None and lowered.blob:
            await self.keep_lowered(lowered, found.store_key)
        return found and msgspec.structs.replace(found, roles=lowered.roles)

    async def keep(self, library: Iterable[Artifact]) -> None:
        """Keep artifacts of one library under their keys. Skip those without a key."""
        if good := [(one.store_key, one) for one in library if one.store_key]:
            await self._do(lambda store: store.put(good))

    async def keep_lowered(self, lowered: Lowered, key: str) -> None:
        """Keep what a kernel was lowered to. Its library must be in the store, under `key`."""
        await self._do(lambda store: store.put_lowered(msgspec.structs.replace(lowered, kept_as=key)))

    async def _do(self, use: Callable[[ArtifactStore], T]) -> T | None:
        if self.store is None:
            return None
        try:
            return await anyio.to_thread.run_sync(use, self.store, abandon_on_cancel=True)
        except OSError as error:
            self._say(f"the artifact store could not be used, and the run compiles what it lacks: {error}")
            return None


# ---- the compile service: a process with the headers of CUDA parsed, which compiles device code by cicc


DRIVER = ("/dev/nvidiactl", "/dev/dxg")
"""Files of CUDA's driver: if the driver is installed, one of them exists."""
SERVICE = ("atune.stages.cicc.server",)
PREPARE_TIMEOUT_S = 120.0


class ServiceProcess(anyio.AsyncContextManagerMixin):
    """The process with the parsed headers: of one run, or of several at the same time. Forked at the first call.

    It has a fork server of its own, which imports almost nothing; see `atune.stages.cicc.server`.
    """

    def __init__(self, nice: int = 0) -> None:
        self._nice = nice
        self.worker: Worker | None = None
        """The process; None before it starts."""
        self.parsed = False
        """Whether it has parsed headers, and compiled by them."""
        self._turn = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[ServiceProcess, None]:
        async with background() as self._tasks:
            yield self

    async def call(self, entry: str, request: object) -> str:
        """Have the process do something, and return why it cannot; empty if it can.

        Raises `WorkerError` and `OSError`. Cancelling it ends the process.
        """
        async with self._turn:
            if self.worker is None:
                self.worker = await self._tasks.start(self._run)
            return (await self.worker.call(entry, msgspec.msgpack.encode(request), PREPARE_TIMEOUT_S)).decode()

    async def _run(self, *, task_status: anyio.abc.TaskStatus[Worker]) -> None:
        async with ForkServer(started(SERVICE)) as server:
            worker = await server.spawn("service", env=process_folders(str(server.run_dir)), nice=self._nice)
            task_status.started(worker)
            await worker.ended()


class CompileService:
    """Has a run's candidates compiled by `process`.

    `start` begins to parse headers while the fork server still imports tilelang. At the first candidate that must be
    compiled the process is asked to compile for the run, unless `use` was given a reason against it. While `warming`,
    lowering continues and building waits. If `ready`, builds use the service.
    """

    def __init__(self, settings: CompileSettings, target: str | Target) -> None:
        self.ready = False
        """Whether the service compiles."""
        self.why = ""
        """Why nvcc compiles; empty where it does not, or where that needs no explanation."""
        self.wake: Callable[[], None] = lambda: None
        """Called after each change."""
        self.process: ServiceProcess
        self._settings, self._target = settings, target
        self._run_dir = ""
        self._off = False
        self._request: tuple[bytes, str, str] | None = None
        """The request to the process; None until a candidate must be compiled."""
        self._scope: anyio.CancelScope | None = None
        """Ends what the run asks of the process; None without it."""
        self._wanted: anyio.Event
        self._tasks: anyio.abc.TaskGroup

    @property
    def warming(self) -> bool:
        """Whether the service will soon be `ready`."""
        return self._request is not None and not (self.ready or self.why or self._off)

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
        was_off, self._off = self._off, against is not None
        if was_off or self._off:
            self.ready, self.why = False, f"nvcc, because {against}" if against else ""
        if self._off and self._scope is not None:
            self._scope.cancel()
            self._scope = None
        self.wake()

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Have the service compile for the run, at the first candidate that must be compiled."""
        if self._request is not None or self._off:
            return
        self._request = (lowered.blob, target.arch, self._run_dir)
        if self._scope is None:
            self._begin(None)
        self._wanted.set()
        self.wake()

    def explain(self, artifact: Artifact) -> Artifact:
        """Return `artifact` with the reason for the choice of its compiler, if it has none of its own."""
        return msgspec.structs.replace(artifact, why=artifact.why or self.why)

    def _begin(self, arch: str | None) -> None:
        """Have headers for `arch` parsed before a candidate is known. An empty `arch` means that of this machine's GPU;
        None waits for the candidate."""
        self._wanted, self._scope = anyio.Event(), anyio.CancelScope()
        self._tasks.start_soon(self._run, arch, self._scope)

    async def _run(self, arch: str | None, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                if arch is not None:
                    await self.process.call(SERVICE_HEADER, arch)
                await self._wanted.wait()
                self._settle(await self.process.call(SERVICE_LISTEN, self._request))
                if self.ready and self.process.worker is not None:
                    raise await self.process.worker.ended()
        except (WorkerError, OSError) as error:
            output = getattr(error, "detail", "").strip().splitlines()
            self._settle("; ".join((f"the compile service ended: {error}", *output[-1:])))

    def _settle(self, broken: str) -> None:
        """Have the service compile from now on, or not, because it is `broken`."""
        self.ready, self.why = not broken, f"nvcc, because {broken}" if broken else ""
        self.process.parsed |= self.ready
        self.wake()
