"""A compile worker on this machine."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, cast

import msgspec

from atune.errors import RemoteError, WorkerLost
from atune.model.artifact import SERVER_LOST, Artifact, Built, Compared, Elaborated, Failure, Lowered, Roles
from atune.model.folders import made_folder
from atune.model.jobs import (
    HOPELESS,
    PAST_COMPILE_TIMEOUT,
    A,
    BuildJob,
    CompareJob,
    ElaborateJob,
    FindJob,
    GroupFailed,
    Job,
    LowerJob,
    RolesJob,
)
from atune.workers.artifact_store import RunStore
from atune.workers.compile_service import CompileService
from atune.workers.messages import Session
from atune.workers.pool import Worker
from atune.workers.resources import COMPILE_NICE, CompilerKilled, ShortOf, space_is_short
from atune.workers.supervised import DOING, NOT_ALONE, STARVED, Supervised, failure_in
from atune.workers.workers import Workers, shortage

ELABORATE_S = 20.0
"""Seconds that an elaboration may take. The limit is low, because the whole run waits. A lower `compile_timeout_s`
takes precedence. If a candidate takes longer, its facts stay unknown, but its lowering gets the whole deadline."""
SPOILED = (
    "candidate {index} failed in a process that had run other candidates, but not in a fresh process, because another "
    "candidate changes shared state of the process, such as os.environ. atune repeats failed jobs in a fresh process"
)
PATIENCE = 4.0
"""Factor by which a job's deadline grows if the job is repeated because it got hardly any CPU time."""


class CompileProcess(Supervised):
    """A process of a compile worker. `role`: the process's name. A job starts the process if it is not running."""

    died, raised = "crash", "lower"

    def __init__(self, workers: Workers, session: Session, role: str) -> None:
        super().__init__(workers)
        self._session, self._role = session, role

    async def _ready(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self.ran.clear()
            self._worker = await self.workers.begun(self._role, self._session, COMPILE_NICE)
        return self._worker

    async def _send(self, job: Job[Any], limit_s: float) -> bytes:
        """Send `job` as `Supervised` does, but raise `WorkerLost` also if a compiler was killed."""
        try:
            return await super()._send(job, limit_s)
        except RemoteError as error:
            if error.kind == CompilerKilled.__name__:
                raise WorkerLost(str(error), error.detail, outside=True) from error
            if shortage(error) is not None:
                await self.kill()  # the process may hold the missing resource
            raise
        except WorkerLost as error:
            if not error.outside and space_is_short(self._session.run_dir):  # for example SIGBUS in a mapped file
                raise RemoteError(f"space: {error}", error.detail, ShortOf.__name__) from error
            raise


class LocalCompileWorker:
    """A compile worker with two processes: one runs the code of candidates, and the other builds libraries."""

    def __init__(self, workers: Workers, session: Session, store: RunStore, service: CompileService, name: str) -> None:
        self.workers, self.session, self.store, self.service = workers, session, store, service
        self.name = name
        self._code = CompileProcess(workers, msgspec.structs.replace(session, load=True), name)
        self._builds = CompileProcess(workers, session, f"{name}-builds")
        self._libraries = 0
        self.prepare: Callable[[Job[Any]], Awaitable[Any]] | None = None
        """Function that replaces each job by another job or by a failure; None to do the jobs unchanged."""

    async def run(self, job: Job[A]) -> A:
        if self.prepare is not None and isinstance(job := await self.prepare(job), Failure):
            return cast(A, job)
        return cast(A, await getattr(self, f"_{job.name}")(job))

    async def _roles(self, job: RolesJob) -> Roles | Failure:
        return await self._try(job, job.candidate.index, min(self._limit_s, ELABORATE_S))

    async def _lower(self, job: LowerJob) -> Lowered | Failure:
        anew = job.anew or self.store.store is None
        lowered = await self._try(LowerJob(job.candidate, anew=anew), job.candidate.index)
        lowered = msgspec.structs.replace(lowered, printed=self._code.printed)
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
            doubt = f"elaborating it took more than {limit:g} s"
            answer = msgspec.structs.replace(answer, message=doubt, doubt=doubt)
        return _of_group(answer, len(job.candidates))

    async def _find(self, job: FindJob) -> Artifact | None:
        artifact = await self.store.find(job.lowered)
        if artifact is None:
            state, _ = await self.store.state(job.lowered.use)
            self.service.saw(job.lowered, self.session.target, known=bool(state))  # only the first call has an effect
        return artifact

    async def _build(self, job: BuildJob) -> list[Built] | GroupFailed:
        """Compile a group into one library and store it. `service` chooses the compilers for CUDA."""
        store, service, group = self.store, self.service, job.group
        states = [await store.state(lowered.use) for lowered in group]
        by = "nvcc" if job.plain else service.compilers([lowered.use for lowered in group], states)
        job = msgspec.structs.replace(job, path=self._new_library(), by=by)
        answers = await self._try(job, group[0].index, job.limit_s)
        if isinstance(answers, Failure):
            return _of_group(answers, len(group))
        assert not isinstance(answers, GroupFailed), "a process raises"
        built = list[Built]()
        for lowered, state, member in zip(group, states, answers, strict=True):
            if isinstance(member, Artifact):
                compared = bool(member.state) and state == (member.state, "")
                why = member.why or (service.why if member.plain else "")
                member = msgspec.structs.replace(member, compared=compared, why=why)
                await store.keep(member, lowered)
            built.append(member)
        return built

    async def _compare(self, job: CompareJob) -> Compared | Failure:
        """Compile a candidate with nvcc, and compare the result with cicc's library. Returns a `Failure` after a crash
        or a timeout. Raises `WorkerLost` if the worker was killed from outside."""
        await self._code.kill()  # no other candidate may influence the result
        job, limit_s = msgspec.structs.replace(job, path=self._new_library()), 2 * self._limit_s  # to lower and compile
        answer = await self._try(job, job.candidate.index, limit_s)
        if isinstance(answer, Failure) and answer.doubt:
            raise WorkerLost(answer.message, answer.detail, outside=True)
        return answer

    async def _try(self, job: Job[A], index: int, limit_s: float | None = None, *, before: str = "") -> A | Failure:
        """Have a process do `job` within `limit_s`, by default within the settings' deadline, and return the answer.

        If there is no answer, return the failure of candidate `index`. If the failure is in doubt, repeat the job once
        in a fresh process, where `before` is the reason for the doubt. If the worker was killed from outside, return
        the failure with its doubt, so that the engine repeats the work.
        """
        process = self._builds if isinstance(job, BuildJob) else self._code
        most_s = (limit_s or self._limit_s) * (PATIENCE if before == STARVED else 1)
        alone = before == STARVED or (before == SERVER_LOST and process is self._code)  # it may end the next server
        async with self.workers.alone if alone else nullcontext():
            answer = await process.settled(job, self._late(job, index), most_s)
        failure = failure_in(answer)
        if failure is None and before == NOT_ALONE:
            self.workers.warn_once("spoiled", SPOILED.format(index=index))
        if failure is None or failure.doubt not in (NOT_ALONE, STARVED, SERVER_LOST):
            return answer
        if failure.doubt == before == STARVED:
            return msgspec.structs.replace(failure, doubt="")
        await process.kill()
        return await self._try(job, index, limit_s, before=failure.doubt)

    def _late(self, job: Job[Any], index: int) -> Failure:
        """Return the failure for the candidate `index` if `job` misses its deadline."""
        if isinstance(job, BuildJob) and job.limit_s is not None:
            return Failure(index, "hopeless", HOPELESS.format(limit_s=job.limit_s))
        return Failure(index, "timeout", PAST_COMPILE_TIMEOUT.format(doing=DOING[type(job)], limit_s=self._limit_s))

    @property
    def _limit_s(self) -> float:
        return self.session.compile.compile_timeout_s

    def _new_library(self) -> str:
        self._libraries += 1
        folder = made_folder(self.session.run_dir, "artifacts")
        return os.path.join(folder, f"{self.name}-{self._libraries}.so")


def _of_group(failure: Failure, members: int) -> list[Any] | GroupFailed:
    """Return `failure` as the answer for a group: a list if the group has one member, and otherwise a `GroupFailed`."""
    return GroupFailed(failure.message, failure.doubt) if members > 1 else [failure]
