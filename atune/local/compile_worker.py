"""A compile worker on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from atune.engine.interfaces import GroupFailed
from atune.errors import RemoteError, ServerLost, UsageError, WorkerLost, WorkerTimeout, translated
from atune.local.compile_service import CompileService
from atune.local.entry_points import BUILD, ELABORATE, LOWER, LOWER_ANEW, PROVE, RANK
from atune.local.patience import Patience, Room, shortage
from atune.local.run_store import RunStore
from atune.local.workers import Workers, how_it_ended
from atune.model import jobs
from atune.model.artifact import Artifact, Built, Elaborated, Failure, FailureKind, Lowered, Proof, StaticFacts
from atune.model.candidate import Candidate, Config
from atune.model.jobs import A, ElaborateJob, FindJob, Job, LowerJob, ProveJob, decoded, encoded
from atune.processes.messages import BuildJob, ProofJob, Session
from atune.processes.worker import Worker
from atune.search.prior import OwnPrior
from atune.system.folders import made_folder
from atune.system.shortage import CompilerKilled, ShortOf, space_is_short

COMPILE_NICE = 5
"""Niceness of the compile workers. The user's own programs and the device processes take precedence."""

ELABORATE_S = 20.0
"""Most seconds for one elaboration, because the whole run waits for it. `compile_timeout_s` counts if it is less.
A candidate that takes longer stays unknown, and its lowering has the whole deadline."""


@dataclass(frozen=True)
class CompileContext:
    """Shared state of a run's compile workers."""

    session: Session
    workers: Workers
    store: RunStore
    service: CompileService
    room: Room
    patience: Patience


@dataclass(frozen=True)
class _Mishap:
    """Reason why a compile has no result."""

    kind: FailureKind
    message: str
    detail: str
    doubt: str = ""

    def of(self, index: int) -> Failure:
        return Failure(index=index, kind=self.kind, message=self.message, detail=self.detail, doubt=self.doubt)


def _lost(doing: str, error: WorkerLost) -> _Mishap:
    """Return the mishap for the work of a lost worker. If the worker was killed from outside, the work is retried."""
    how = how_it_ended(error)
    if error.outside:
        return _Mishap("worker_lost", f"{doing} was killed: {how}", error.detail, f"its compile worker was lost: {how}")
    return _Mishap("crash", f"{doing} ended its process: {how}", error.detail)


class LocalCompileWorker:
    """One compile worker, replaced when it dies."""

    def __init__(self, context: CompileContext, name: str, cpus: Sequence[int] | None) -> None:
        self.context, self.name, self.cpus = context, name, cpus
        self._worker: Worker | None = None
        self._libraries = 0
        self._calls = 0
        self.compiling = 0

    async def run(self, job: Job[A]) -> A:
        answer: Any
        match job:
            case LowerJob():
                answer = await self.lower(job.candidate, anew=job.anew)
            case ElaborateJob():
                answer = await self.elaborate(job.candidates)
            case jobs.RankJob():
                answer = await self._rank(job)
            case FindJob():
                answer = await self.find(job.lowered)
            case jobs.BuildJob():
                answer = await self.build(job.group)
            case ProveJob():
                answer = await self.prove(job.candidate, job.measured, job.lowered)
            case _:
                raise TypeError(f"no compile worker does {job.name}")
        return cast(A, answer)

    async def lower(self, candidate: Candidate, *, anew: bool = False) -> Lowered | Failure:
        limit, index = self._limit_s, candidate.index
        entry = LOWER_ANEW if anew or not self.context.store.used else LOWER
        try:
            reply = await self._call(entry, msgspec.msgpack.encode(candidate))
        except WorkerTimeout as error:
            return _Mishap("timeout", f"lowering ran past compile_timeout_s={limit:g}", error.detail).of(index)
        except WorkerLost as error:
            return _lost("lowering", error).of(index)
        except RemoteError as error:
            raise translated(error) from error
        lowered: Lowered | Failure = msgspec.msgpack.decode(reply, type=Lowered | Failure)
        if isinstance(lowered, Failure) or lowered.blob or anew:
            return lowered
        kept = await self.context.store.find(lowered)
        return lowered if kept is not None else await self.lower(candidate, anew=True)

    async def elaborate(self, candidates: Sequence[Candidate]) -> list[Elaborated | Failure]:
        limit, index = min(self._limit_s, ELABORATE_S), candidates[0].index
        try:
            reply = await self._call(ELABORATE, msgspec.msgpack.encode(list(candidates)), limit)
        except WorkerTimeout as error:
            doubt = "" if limit == self._limit_s else f"elaborating it takes more than {limit:g} s"
            message = f"elaborating ran past compile_timeout_s={self._limit_s:g}"
            mishap = _Mishap("timeout", doubt or message, error.detail, doubt)
        except WorkerLost as error:
            mishap = _lost("elaborating", error)
        except RemoteError as error:
            raise translated(error) from error
        else:
            return msgspec.msgpack.decode(reply, type=list[Elaborated | Failure])
        if len(candidates) > 1:
            raise GroupFailed(mishap.message, mishap.doubt)
        return [mishap.of(index)]

    async def rank(self, prior: OwnPrior, known: Mapping[int, tuple[Config, StaticFacts]]) -> dict[int, float]:
        return await self.run(jobs.RankJob(prior.name, prior.pickled, dict(known)))

    async def _rank(self, job: jobs.RankJob) -> dict[int, float]:
        try:
            reply = await self._call(RANK, encoded(job))
        except WorkerTimeout as error:
            raise UsageError(
                f"prior {job.called} took more than compile_timeout_s={self._limit_s:g} s for {len(job.candidates)} "
                "candidates: make it faster, or omit prior="
            ) from error
        except WorkerLost as error:
            raise UsageError(f"prior {job.called} ended its process: {how_it_ended(error)}") from error
        except RemoteError as error:
            raise translated(error) from error
        return decoded(job, reply)

    async def find(self, lowered: Lowered) -> Artifact | None:
        found = await self.context.store.find(lowered)
        if found is None:
            self.context.service.saw(lowered, self.context.session.target)  # only its first call decides
        return found

    async def build(self, group: Sequence[Lowered]) -> list[Built]:
        """Compile `group`. An earlier run lowered the members without a blob; these come from the store."""
        answers: dict[int, Built] = {}
        for lowered in group:
            if not lowered.blob:
                gone = _Mishap("codegen", "its library vanished from the artifact store; tune again", "")
                answers[lowered.index] = await self.context.store.find(lowered) or gone.of(lowered.index)
        if fresh := [lowered for lowered in group if lowered.blob]:
            built = await self._compile(fresh)
            explain = self.context.service.explain
            answers.update((one.index, explain(one) if isinstance(one, Artifact) else one) for one in built)
        return [answers[lowered.index] for lowered in group]

    async def prove(self, candidate: Candidate, measured: Artifact, lowered: Lowered | None = None) -> Proof | Failure:
        """Compile `candidate` without accelerators and compare, unless an earlier run proved it.

        A crash or a timeout is a `Failure`. The plain library is stored, and if nothing differs, the proof too.
        Raises `WorkerLost` if the worker was killed from outside.
        """
        store = self.context.store
        if await store.find_proof(measured):
            return Proof(index=candidate.index)
        job = ProofJob(candidate=candidate, measured=measured, path=self._new_library(), lowered=lowered)
        reply = await self._try(PROVE, msgspec.msgpack.encode(job))
        if isinstance(reply, _Mishap):
            if reply.doubt:
                raise WorkerLost(reply.message, reply.detail, outside=True)
            return reply.of(candidate.index)
        proof: Proof | Failure = msgspec.msgpack.decode(reply, type=Proof | Failure)
        if isinstance(proof, Proof) and measured.store_key:  # without a key, neither may be stored
            if proof.plain is not None:
                await store.keep([proof.plain])
            if not proof.difference:
                await store.keep_proof(measured)
        return proof

    async def _compile(self, group: Sequence[Lowered]) -> list[Built]:
        """Compile `group` into one library and store it. Raises `GroupFailed` if a group of several fails."""
        job = BuildJob(group=tuple(group), path=self._new_library(), service=self.context.service.ready)
        reply = await self._try(BUILD, msgspec.msgpack.encode(job))
        if isinstance(reply, _Mishap):
            if len(group) > 1:
                raise GroupFailed(reply.message, reply.doubt)
            return [reply.of(group[0].index)]
        answers: list[Built] = msgspec.msgpack.decode(reply, type=list[Artifact | Failure])
        built = [_keyed(one, lowered) for lowered, one in zip(group, answers, strict=True)]
        store, good = self.context.store, [one for one in built if isinstance(one, Artifact)]
        await store.keep(good)
        stored = {one.index for one in good if one.store_key}
        for lowered in group:
            if lowered.index in stored:
                await store.keep_lowered(lowered)
        return built

    async def _try(self, entry: str, job: bytes) -> bytes | _Mishap:
        """Have the worker compile. Return its answer, or the reason for a missing one."""
        try:
            return await self._call(entry, job)
        except WorkerTimeout as error:
            return _Mishap("timeout", f"compiling ran past compile_timeout_s={self._limit_s:g}", error.detail)
        except WorkerLost as error:
            return _lost("compiling", error)
        except RemoteError as error:
            return _Mishap("codegen", str(error), error.detail)

    async def _call(self, entry: str, payload: bytes, limit_s: float | None = None) -> bytes:
        """Call the worker in its turn, for at most `limit_s` or the settings' deadline.

        If the machine is short of a resource, this waits and retries with a new worker.

        Raises `WorkerLost` also if a compiler was killed.
        """
        return await self.context.patience.until_it_works(lambda: self._call_with_room(entry, payload, limit_s))

    async def _call_with_room(self, entry: str, payload: bytes, limit_s: float | None) -> bytes:
        """Call the worker when `Room` has a free place. Retry if it lacked memory or its server was lost."""
        room = self.context.room
        while True:
            async with room.taken():
                try:
                    return await self._call_now(entry, payload, limit_s)
                except ServerLost:
                    continue  # a new server starts, or the next call raises the reason why not
                except WorkerLost as error:
                    if not (error.outside and room.made()):
                        raise

    async def _call_now(self, entry: str, payload: bytes, limit_s: float | None) -> bytes:
        if self._worker is None or not self._worker.alive:
            context = self.context
            self._worker = await context.workers.loaded(self.name, context.session, cpus=self.cpus, nice=COMPILE_NICE)
        steps = 2 if entry == PROVE else 1  # a proof lowers and compiles
        self._calls += 1
        self.compiling = self._calls if entry == BUILD else 0
        try:
            return await self._worker.call(entry, payload, steps * (limit_s or self._limit_s))
        except RemoteError as error:
            if error.kind == CompilerKilled.__name__:
                raise WorkerLost(str(error), error.detail, outside=True) from error
            if shortage(error) is not None:
                await self._worker.kill()  # it may hold the missing resource
            raise
        except WorkerLost as error:
            if not error.outside and space_is_short(self.context.session.run_dir):  # such as SIGBUS in a mapped file
                raise RemoteError(f"space: {error}", error.detail, ShortOf.__name__) from error
            raise
        finally:
            self.compiling = 0

    @property
    def _limit_s(self) -> float:
        return self.context.session.compile.compile_timeout_s

    def _new_library(self) -> str:
        self._libraries += 1
        folder = made_folder(self.context.session.run_dir, "artifacts")
        return os.path.join(folder, f"{self.name}-{self._libraries}.so")


def _keyed(built: Built, lowered: Lowered) -> Built:
    """Return `built` with the store's key of `lowered`, which is empty if the result may not be stored."""
    if isinstance(built, Failure):
        return built
    return msgspec.structs.replace(built, store_key=lowered.store_key if lowered.storable else "")
