"""A compile worker on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec

from atune.engine.interfaces import GroupFailed
from atune.errors import RemoteError, WorkerLost, WorkerTimeout, translated
from atune.local.device_worker import how_it_ended
from atune.model.artifact import Artifact, Built, Failure, FailureKind, Lowered
from atune.model.candidate import Candidate
from atune.processes.messages import BuildJob
from atune.processes.worker import Worker
from atune.system.folders import made_folder

if TYPE_CHECKING:
    from atune.local.backend import LocalBackend

EXACT = "-nvcc"
"""Marks, in the artifact store, code as tilelang's own compile makes it, beside what a run first compiled. (nvcc alone
made it once; the value is that of the stores there are.)"""
COMPILE_NICE = 5
"""Niceness of the compile workers: the user's own programs, and the measuring processes, go first."""


class LocalCompileLane:
    """One compile worker, replaced when it dies."""

    def __init__(self, backend: LocalBackend, name: str, cpus: Sequence[int] | None) -> None:
        self.backend, self.name, self.cpus = backend, name, cpus
        self._worker: Worker | None = None
        self._built = 0

    async def lower(self, candidate: Candidate, *, anew: bool = False) -> Lowered | Failure:
        limit = self.backend.compile.compile_timeout_s
        index = candidate.index
        entry = "atune.stages.compile.lowering:" + ("run_anew" if anew or self.backend.store is None else "run")
        try:
            reply = await self._call(entry, msgspec.msgpack.encode(candidate), limit)
        except WorkerTimeout as error:
            return Failure(index, "timeout", f"lowering ran past compile_timeout_s={limit:g}", error.detail)
        except WorkerLost as error:
            return Failure(index, "crash", f"lowering ended its process: {how_it_ended(error)}", error.detail)
        except RemoteError as error:
            raise translated(error) from error
        lowered: Lowered | Failure = msgspec.msgpack.decode(reply, type=Lowered | Failure)
        if isinstance(lowered, Lowered) and not lowered.blob and anew is False and await self._stored(lowered) is None:
            return await self.lower(candidate, anew=True)
        return lowered

    async def find(self, lowered: Lowered) -> Artifact | None:
        found = await self._stored(lowered)
        if found is None:
            self.backend.service.saw(lowered, self.backend.target)  # it decides once
        return found

    async def _stored(self, lowered: Lowered, variant: str = "") -> Artifact | None:
        store = self.backend.store
        if store is None or not lowered.storable:
            return None
        try:
            found = await anyio.to_thread.run_sync(store.find, lowered.code_key + variant, lowered.index)
            if found is not None and lowered.blob and not variant:
                await anyio.to_thread.run_sync(store.put_lowered, lowered)
            return found
        except OSError:
            self.backend.store = None  # read-only, full or gone: this run does without
            return None

    async def build(self, group: Sequence[Lowered]) -> list[Built]:
        """Compile `group`; those that an earlier run lowered, and that have no blob, come from the store."""
        answers: dict[int, Built] = {}
        for lowered in group:
            if not lowered.blob:
                gone = Failure(lowered.index, "codegen", "its library vanished from the artifact store; tune again")
                answers[lowered.index] = await self._stored(lowered) or gone
        if fresh := [lowered for lowered in group if lowered.blob]:
            answers.update((built.index, built) for built in await self._compile(fresh))
        return [answers[lowered.index] for lowered in group]

    async def as_tilelang(self, candidates: Sequence[Candidate], known: Mapping[int, Lowered]) -> list[Built]:
        """Compile `candidates` to the code that tilelang itself makes; what an earlier run left of it is taken."""
        answers: dict[int, Built] = {}
        groups: dict[str, list[Lowered]] = {}
        for candidate in candidates:
            lowered = known.get(candidate.index) or await self.lower(candidate)
            found = await self._stored(lowered, EXACT) if isinstance(lowered, Lowered) else lowered
            if found is None and isinstance(lowered, Lowered) and not lowered.blob:
                lowered = await self.lower(candidate, anew=True)
                found = lowered if isinstance(lowered, Failure) else None
            if found is not None:
                answers[candidate.index] = found
            elif isinstance(lowered, Lowered):
                groups.setdefault(lowered.merge_key, []).append(lowered)
        for group in groups.values():
            try:
                built = await self._compile(group, exact=True)
            except GroupFailed as error:
                built = [Failure(lowered.index, "codegen", str(error)) for lowered in group]
            answers.update((one.index, one) for one in built)
        return [answers[candidate.index] for candidate in candidates]

    async def _compile(self, group: Sequence[Lowered], *, exact: bool = False) -> list[Built]:
        self._built += 1
        path = os.path.join(made_folder(self.backend.run_dir, "artifacts"), f"{self.name}-{self._built}.so")
        limit = self.backend.compile.compile_timeout_s
        kind: FailureKind
        job = BuildJob(tuple(group), path, self.backend.service.compiler, exact)
        try:
            reply = await self._call("atune.stages.compile.codegen:run", msgspec.msgpack.encode(job), limit)
        except WorkerTimeout as error:
            kind, message, detail = "timeout", f"compiling ran past compile_timeout_s={limit:g}", error.detail
        except WorkerLost as error:
            kind, message, detail = "crash", f"compiling ended its process: {how_it_ended(error)}", error.detail
        except RemoteError as error:
            kind, message, detail = "codegen", str(error), error.detail
        else:
            built = msgspec.msgpack.decode(reply, type=list[Artifact | Failure])
            await self._keep(group, built, EXACT if exact else "")
            if exact:
                return list(built)
            return [self.backend.service.explain(one) if isinstance(one, Artifact) else one for one in built]
        if len(group) > 1:
            raise GroupFailed(message)
        return [Failure(group[0].index, kind, message, detail)]

    async def _keep(self, group: Sequence[Lowered], built: Sequence[Built], variant: str) -> None:
        store = self.backend.store
        both = zip(group, built, strict=True)
        good = [(low, one) for low, one in both if isinstance(one, Artifact) and low.storable]
        if store is not None and good:
            try:
                await anyio.to_thread.run_sync(store.put, [(low.code_key + variant, one) for low, one in good])
                for low, _ in good if not variant else ():
                    await anyio.to_thread.run_sync(store.put_lowered, low)
            except OSError:
                self.backend.store = None  # full or gone: this run does without

    async def _call(self, entry: str, payload: bytes, timeout_s: float) -> bytes:
        if self._worker is None or not self._worker.alive:
            self._worker = await self.backend.loaded(self.name, cpus=self.cpus, nice=COMPILE_NICE)
        return await self._worker.call(entry, payload, timeout_s)
