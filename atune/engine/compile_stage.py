"""The compile side of a run: gives free compile workers their next step, and handles the answers.

It knows no device and no journal: `Answers` decides where answers go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from atune.engine.interfaces import CompileHints, CompileWorker
from atune.engine.run_state import Signals
from atune.engine.scheduler import CompileState, Job, Lower, halves
from atune.engine.screen import Verdict
from atune.model.artifact import Artifact, Built, Failure, Lowered
from atune.model.candidate import Candidate
from atune.model.jobs import BuildJob, FindJob, GroupFailed, LowerJob

Build = Callable[[CompileWorker, Sequence[Lowered]], Awaitable[list[Built] | GroupFailed]]
"""Has a worker compile a group."""


class Answers(Protocol):
    """Receives what happened to candidates. `worker` is the name of the worker that handled one."""

    def lowered(self, worker: str, lowered: Lowered) -> Verdict:
        """Record a lowered candidate, and return the screen's verdict."""
        ...

    def judged(self, lowered: Lowered) -> Verdict:
        """Judge a candidate again that was told to wait."""
        ...

    def same(self, worker: str, index: int, same_as: int) -> None:
        """Record that a candidate has the same code as another, and needs no more work."""
        ...

    def pruned(self, worker: str, index: int, why: str) -> None: ...

    def failed(self, worker: str, failure: Failure) -> None: ...

    def repeated(self, worker: str, indices: Sequence[int], reason: str) -> None:
        """Record that candidates are lowered or compiled again. Their worker was lost, not by their fault."""
        ...

    def split(self, worker: str, group: Sequence[Lowered], message: str) -> None:
        """Record that a group failed as a whole."""
        ...

    async def built(self, worker: str, members: Sequence[tuple[Lowered, Artifact]], reason: str) -> None:
        """Record a library of `members`, and hand them on as soon as the artifact stream has room."""
        ...

    def end(self) -> None:
        """Record that nothing more will be built."""
        ...


class Compiling:
    """Lowers and builds on all compile workers, as the scheduler decides.

    `hints` returns the compilers' hints for a number of measuring devices. `codes`: candidates by the key of their
    code, as earlier parts of the run found them. `build`: how groups are compiled, see `CompileWatch`.
    """

    def __init__(
        self,
        signals: Signals,
        state: CompileState,
        proposals: MemoryObjectReceiveStream[Candidate],
        answers: Answers,
        *,
        hints: Callable[[int], CompileHints],
        codes: Mapping[str, int] = {},
        build: Build = lambda worker, group: worker.run(BuildJob(tuple(group))),
    ) -> None:
        self.signals, self.state, self.answers = signals, state, answers
        self._proposals, self._hints, self._build_with = proposals, hints, build
        self._codes = dict(codes)
        self._back: deque[Candidate] = deque()
        """Candidates that were put back, to be lowered again."""
        self._repeated: set[int] = set()
        """Candidates that lost a worker once, which is not held against them. A second loss is."""
        self._idle = anyio.Lock(fast_acquire=True)
        """Held by the idle worker that looks for work. The others would find what it finds, so they queue."""

    async def serve(self, worker: CompileWorker) -> None:
        """Do what the scheduler decides, until nothing is left to compile."""
        while True:
            job = self._next_job()
            if job is None:
                async with self._idle:
                    while (job := self._next_job()) is None and not self._all_compiled:
                        await self.signals.changed()
            if job is None:
                return
            await self._do(worker, job)

    def _next_job(self) -> Job | None:
        self.look()
        return self.state.next_job()

    @property
    def _all_compiled(self) -> bool:
        return self.state.finished and not self.state.counts.busy

    async def ended(self) -> None:
        """Wait until everything is compiled and handed on, then report it."""
        self.look()
        while not self._all_compiled:
            await self.signals.changed()
            self.look()
        self.signals.compiled.set()
        self.answers.end()
        self.signals.wake()

    def look(self) -> None:
        """Bring the scheduler's state up to date."""
        if self.signals.stopping:
            self._drop_queues()
        self.state.queues.waiting = len(self._back) + self._proposals.statistics().current_buffer_used
        self.state.hints = self._hints(self.signals.measuring)

    async def _do(self, worker: CompileWorker, job: Job) -> None:
        self.state.counts.busy += 1
        try:
            if isinstance(job, Lower):
                self.state.counts.taken += job.count
                await self._lower(worker, [self._proposed() for _ in range(job.count)])
            else:
                await self._build(worker, job.group, job.reason)
        finally:
            self.state.counts.busy -= 1
            self.signals.wake()

    async def _lower(self, worker: CompileWorker, candidates: Sequence[Candidate]) -> None:
        left, counts = len(candidates), self.state.counts
        counts.lowering += left
        try:
            for candidate in candidates:
                if not self.signals.stopping:
                    await self._lower_one(worker, candidate)
                    await self._judge_waiting(worker)
                left -= 1
                counts.lowering -= 1
                counts.seen += 1
                self.signals.wake()
        finally:
            counts.lowering -= left
            counts.seen += left

    def _proposed(self) -> Candidate:
        return self._back.popleft() if self._back else self._proposals.receive_nowait()

    def _again(self, worker: CompileWorker, indices: Sequence[int], doubt: str) -> bool:
        """Tell whether to repeat these because of `doubt`: yes, if any member was not repeated yet."""
        if not doubt or self._repeated.issuperset(indices):
            return False
        self._repeated.update(indices)
        self.answers.repeated(worker.name, indices, doubt)
        return True

    async def _lower_one(self, worker: CompileWorker, candidate: Candidate) -> None:
        answer = await worker.run(LowerJob(candidate))
        if isinstance(answer, Failure):
            if self._again(worker, [candidate.index], answer.doubt):
                self._back.append(candidate)
                self.state.counts.taken -= 1
                self.state.counts.seen -= 1
            else:
                self.answers.failed(worker.name, answer)
            return
        verdict, why = self.answers.lowered(worker.name, answer)
        same_as = self._codes.setdefault(answer.code_key, answer.index)
        if same_as != answer.index:
            self.answers.same(worker.name, answer.index, same_as)
        else:
            await self._judged(worker, answer, verdict, why)

    async def _judge_waiting(self, worker: CompileWorker) -> None:
        """Judge those again that wait for what is known by now."""
        for answer in list(self.state.queues.undecided.values()):
            verdict, why = self.answers.judged(answer)
            if verdict != "wait" and self.state.queues.undecided.pop(answer.index, None) is not None:
                await self._judged(worker, answer, verdict, why)

    async def _judged(self, worker: CompileWorker, answer: Lowered, verdict: str, why: str) -> None:
        if verdict == "wait":
            self.state.queues.undecided[answer.index] = answer
        elif verdict == "prune":
            self.answers.pruned(worker.name, answer.index, why)
        elif (known := await worker.run(FindJob(answer))) is not None:  # deferring such a candidate saves nothing
            await self.answers.built(worker.name, [(answer, known)], "compiled before")
        else:
            self.state.add(answer, deferred=verdict == "defer")

    async def _build(self, worker: CompileWorker, group: tuple[Lowered, ...], reason: str) -> None:
        self.state.counts.building += 1
        try:
            built = await self._build_with(worker, group)
        finally:
            self.state.counts.building -= 1
        if isinstance(built, GroupFailed):
            if self._again(worker, [lowered.index for lowered in group], built.doubt):
                self.state.queues.retry.append(group)
            else:
                self.answers.split(worker.name, group, built.message)
                self.state.queues.retry += halves(group)
            return
        for lowered, failure in zip(group, built, strict=True):
            if isinstance(failure, Failure):
                if self._again(worker, [lowered.index], failure.doubt):
                    self.state.queues.retry.append((lowered,))
                else:
                    self.answers.failed(worker.name, failure)
        both = zip(group, built, strict=True)
        if good := [(lowered, answer) for lowered, answer in both if isinstance(answer, Artifact)]:
            await self.answers.built(worker.name, good, reason)

    def _drop_queues(self) -> None:
        queues = self.state.queues
        queues.ready.clear()
        queues.deferred.clear()
        queues.retry.clear()
        queues.undecided.clear()
        self._back.clear()
        while True:
            try:
                self._proposals.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                break
