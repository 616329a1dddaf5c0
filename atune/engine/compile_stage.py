"""The compile side of a run: what a free compile worker does next, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from atune.engine.finalists import Finalists
from atune.engine.interfaces import Backend, CompileLane, GroupFailed
from atune.engine.run_state import Run
from atune.engine.scheduler import CompileState, Job, Lower, halves
from atune.engine.screen import screen
from atune.journal.events import (
    ArtifactBuilt,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidatePruned,
    GroupSplit,
)
from atune.model.artifact import Artifact, Failure, Lowered
from atune.model.candidate import Candidate


class Compiling:
    """Lowers and builds on all compile lanes, as the scheduler decides.

    `codes`: candidates by the key of their code, as far as an earlier part of the run knew them.
    """

    def __init__(
        self,
        run: Run,
        backend: Backend,
        state: CompileState,
        proposals: MemoryObjectReceiveStream[Candidate],
        deliver: MemoryObjectSendStream[Artifact],
        codes: dict[str, int],
        finalists: Finalists,
    ) -> None:
        self.run, self.backend, self.state = run, backend, state
        self.emit = run.recorder.emit
        self.finalists = finalists
        self._proposals, self._deliver = proposals, deliver
        self._codes = dict(codes)
        self._families: set[str] = set()
        self._likely: set[int] = set()
        """Candidates that may well lead and were not measured when last looked at."""

    async def serve(self, lane: CompileLane) -> None:
        """Do what the scheduler says, and what the final will need where that is nothing; until all is measured."""
        while True:
            self.look()
            known = self.state.leaders_known and not self.run.stopping and not self._likely_leaders_left()
            part = self.finalists.next_part() if known else ()
            job = None if part else self.state.next_job()
            if job is not None:
                await self._do(lane, job)
            elif part or (self.state.spare and not self.run.stopping and (part := self.finalists.next_part())):
                await self._compile_ahead(lane, part)
            elif self.state.finished and self.run.measured.is_set():
                return
            else:
                await self.run.changed()

    async def _do(self, lane: CompileLane, job: Job) -> None:
        self.state.busy += 1
        try:
            if isinstance(job, Lower):
                self.state.taken += job.count
                await self._lower(lane, [self._proposals.receive_nowait() for _ in range(job.count)])
            else:
                await self._build(lane, job.group, job.reason)
        finally:
            self.state.busy -= 1
            self.run.wake()

    async def _compile_ahead(self, lane: CompileLane, part: tuple[int, ...]) -> None:
        self.state.ahead += 1
        try:
            await self.finalists.make(lane, part)
        finally:
            self.state.ahead -= 1
            self.run.wake()

    async def _lower(self, lane: CompileLane, candidates: Sequence[Candidate]) -> None:
        left = len(candidates)
        self.state.lowering += left
        try:
            for candidate in candidates:
                if not self.run.stopping:
                    await self._lower_one(lane, candidate)
                left -= 1
                self.state.lowering -= 1
                self.state.seen += 1
                self.run.wake()
        finally:
            self.state.lowering -= left
            self.state.seen += left

    async def _lower_one(self, lane: CompileLane, candidate: Candidate) -> None:
        answer = await lane.lower(candidate)
        if isinstance(answer, Failure):
            self._build_failed(lane, answer)
            return
        verdict, why = screen(answer.facts, self.run.limits)
        self.emit(
            CandidateLowered,
            lane=lane.name,
            index=answer.index,
            code_key=answer.code_key,
            facts=answer.facts,
            seconds=answer.seconds,
            deferred=why if verdict == "defer" else "",
        )
        self.state.related |= bool(answer.compile_key) and answer.compile_key in self._families
        self._families.add(answer.compile_key)
        same_as = self._codes.setdefault(answer.code_key, answer.index)
        if same_as != answer.index:
            self.emit(CandidateAliased, lane=lane.name, index=answer.index, same_as=same_as)
            self.run.outcomes.settled(candidate.index)
        elif verdict == "prune":
            self.emit(CandidatePruned, lane=lane.name, index=answer.index, reason=why)
            self.run.outcomes.settled(candidate.index)
        elif (known := await self.find(lane, answer)) is not None:
            await self._deliver.send(known)
        elif verdict == "defer":
            self.state.deferred.append(answer)
        else:
            self.state.ready.append(answer)
            self._likely.add(answer.index)

    def _build_failed(self, lane: CompileLane, failure: Failure) -> None:
        """Record a candidate that did not make it through lowering or building."""
        self.emit(
            BuildFailed,
            lane=lane.name,
            index=failure.index,
            kind=failure.kind,
            message=failure.message,
            detail=failure.detail,
        )
        self.run.outcomes.settled(failure.index)

    async def find(self, lane: CompileLane, lowered: Lowered) -> Artifact | None:
        """Return the candidate's library where an earlier run built it; deferring such a candidate saves nothing."""
        known = await lane.find(lowered)
        if known is not None:
            self.finalists.remember(lowered, known)
            file = known.path.rpartition("/")[2]
            self.emit(
                ArtifactBuilt,
                lane=lane.name,
                indices=(known.index,),
                file=file,
                seconds=0.0,
                reason="compiled before",
                compiler=known.compiler,
                why=known.why,
            )
        return known

    async def _build(self, lane: CompileLane, group: tuple[Lowered, ...], reason: str) -> None:
        self.state.building += 1
        try:
            built = await lane.build(group)
        except GroupFailed as failed:
            self.emit(
                GroupSplit, lane=lane.name, indices=tuple(lowered.index for lowered in group), message=failed.message
            )
            self.state.retry += halves(group)
            return
        finally:
            self.state.building -= 1
        good = [answer for answer in built if isinstance(answer, Artifact)]
        for failure in (answer for answer in built if isinstance(answer, Failure)):
            self._build_failed(lane, failure)
        if good:
            indices, first = tuple(a.index for a in good), good[0]
            file = first.path.rpartition("/")[2]
            self.emit(
                ArtifactBuilt,
                lane=lane.name,
                indices=indices,
                file=file,
                seconds=first.seconds,
                reason=reason,
                compiler=first.compiler,
                why=first.why,
                words=first.words,
            )
        for lowered, answer in zip(group, built, strict=True):
            if isinstance(answer, Artifact):
                self.finalists.remember(lowered, answer)
        for artifact in good:
            await self._deliver.send(artifact)

    def _likely_leaders_left(self) -> bool:
        self._likely = {index for index in self._likely if self.run.recorder.state.outcome(index) is None}
        return bool(self._likely)

    async def ended(self) -> None:
        """Wait until nothing is left to compile and all of it is delivered; then the devices learn it."""
        self.look()
        while not self.state.finished or self.state.busy:
            await self.run.changed()
            self.look()
        self.run.compiled.set()
        self._deliver.close()
        self.run.wake()

    def look(self) -> None:
        """Bring the scheduler's state up to date."""
        if self.run.stopping:
            self._drop_queues()
        self.state.waiting = self._proposals.statistics().current_buffer_used
        self.state.hold, self.state.hold_first = self.backend.hold_builds()
        self.state.resting = self.backend.resting(self.run.measuring)
        self.state.sharing = self.backend.sharing()

    def _drop_queues(self) -> None:
        self.state.ready.clear()
        self.state.deferred.clear()
        self.state.retry.clear()
        while True:
            try:
                self._proposals.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                break
        self.state.waiting = 0
