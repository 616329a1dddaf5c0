"""The compile side of a run: gives each free compile worker its next step, and records the results.

First, one worker finds the roles of the kernel's parameters. This module then takes a candidate from *lowered* to
*built*: `Screen` judges the lowered candidate, the scheduler decides when to build it, and `deliver` queues its
artifact. Meanwhile, a worker compares cicc's library with nvcc's library for each new compiler state.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from atune.engine.benchmark_stage import differences
from atune.engine.interfaces import CompileHints, CompileWorker
from atune.engine.prior import best_estimate
from atune.engine.run_state import Run
from atune.engine.scheduler import CompileState, Job, Lower, halves
from atune.engine.screen import Verdict, reason_to_defer
from atune.errors import AtuneError, MachineError
from atune.journal.events import (
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidatePruned,
    CompileRepeated,
    GroupSplit,
    Warned,
)
from atune.journal.state import COMPILED_BEFORE, State
from atune.model.artifact import Artifact, Built, Failure, Lowered, Roles
from atune.model.candidate import Candidate
from atune.model.jobs import HOPELESS, BuildJob, CompareJob, FindJob, GroupFailed, LowerJob, RolesJob
from atune.workload.source_locations import place_in


async def find_roles(run: Run, worker: CompileWorker, candidates: Sequence[Candidate]) -> None:
    """Set the roles of `run` from the first lowered candidate, or else from the first of `candidates` that elaborates.

    Raises `WorkloadError` if the kernel lacks an output that the workload names.
    """
    for candidate in candidates:
        first = run.lowered
        lowered = None if first is None else next((c for c in candidates if c.index == first.index), None)
        answer = await worker.run(RolesJob(lowered or candidate))
        if isinstance(answer, Roles):
            run.roles = answer
        if isinstance(answer, Roles) or (lowered is not None and not answer.doubt) or run.stopping:
            break
    run.found_roles.set()


class CompilerStates:
    """The compiler states of a run. `candidate`: a function that returns the candidate with a given index."""

    def __init__(self, run: Run, candidate: Callable[[int], Candidate]) -> None:
        self.run, self.candidate = run, candidate
        self.differs = False
        """Whether cicc and nvcc made different code in any compiler state."""
        self._equal, self._seen = set[str](), set[str]()
        self.due = list[Artifact]()
        """Libraries to compare."""
        self.under_way = 0
        """How many comparisons are under way."""

    def saw(self, artifacts: Sequence[Artifact]) -> None:
        """Queue libraries for comparison if their compiler states were not compared yet."""
        for artifact in artifacts:
            if artifact.state and not artifact.compared and artifact.state not in self._seen:
                self._seen.add(artifact.state)
                self.due.append(artifact)
                self.run.wake()

    async def compare(self, worker: CompileWorker) -> None:
        """Compare the next state in the queue. If the worker is lost, the state remains without a comparison."""
        artifact = self.due.pop(0)
        self.under_way += 1
        try:
            answer = await worker.run(CompareJob(self.candidate(artifact.index), artifact))
            if isinstance(answer, Failure):
                self._warn(artifact, f"could not be compared with nvcc's code ({answer.kind}: {answer.message})")
            elif answer.difference:
                self.differs = True
                self._warn(
                    artifact, f"differs from nvcc's code ({answer.difference}), so nvcc compiles the finalists again"
                )
            else:
                self._equal.add(artifact.state)
        except MachineError:
            raise
        except AtuneError as error:
            self._warn(artifact, f"could not be compared with nvcc's code ({error})")
        finally:
            self.under_way -= 1
            self.run.wake()

    def _warn(self, artifact: Artifact, what: str) -> None:
        self.run.recorder.emit(Warned, message=f"cicc's code for candidate {artifact.index} {what}")

    async def settle(self) -> set[int]:
        """Wait until all states are compared, and return the candidates whose library must be built again."""
        while self.due or self.under_way:
            await self.run.changed()
        artifacts = self.run.artifacts
        wrong = {index for index, artifact in artifacts.items() if self.differs and not artifact.plain}
        for index, artifact in list(artifacts.items()):
            if index in wrong:
                del artifacts[index]
            elif artifact.state in self._equal:
                artifacts[index] = msgspec.structs.replace(artifact, compared=True)
        return wrong


LEAST_COMPILED = 8
"""Number of candidates that must have been compiled before the engine ends any compile as hopeless."""
QUANTILE = 0.9
FACTOR = 5.0
"""Longest allowed time of a compile, as a multiple of the `QUANTILE` of the other compile times."""
LAST_FACTOR, LAST_SHARE = 2.0, 1 / 3
"""`LAST_FACTOR`: the factor when the run waits only for its last candidates. `LAST_SHARE`: largest share of candidates
that are last. On an H100 and an H200, kernels that compiled for so long were 3 to 80 times slower than the winner."""
FLOOR_S = 10.0
"""Shortest limit in seconds, because a busy machine may delay any compile by as much time."""
STEP_S = 1.0
"""Seconds after which the compiles under way are examined again."""

Deliver = Callable[[Artifact], Awaitable[None]]
"""Queues a candidate's artifact for the devices, and waits if the queue is full."""


class CompileStage:
    """Lowers and builds candidates on all compile workers, as the scheduler decides.

    `judge`: returns the verdict on a lowered candidate. `hints`: returns the compilers' hints, given the number of
    devices that measure. `timeout_s`: the user's deadline for a compile; without a deadline, no compile is hopeless.
    `states`: the compiler states to compare; None if nothing is measured.
    """

    def __init__(
        self,
        run: Run,
        state: CompileState,
        proposals: MemoryObjectReceiveStream[Candidate],
        judge: Callable[[Lowered], Verdict],
        deliver: Deliver,
        *,
        hints: Callable[[int], CompileHints],
        states: CompilerStates | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.run, self.state, self.emit = run, state, run.recorder.emit
        self._proposals, self._judge, self._deliver, self._states = proposals, judge, deliver, states
        self._hints, self._timeout_s = hints, timeout_s
        self._building: dict[anyio.CancelScope, tuple[Sequence[Lowered], float]] = {}
        """The groups that are being compiled, and when each began, on the clock `_passed_s`."""
        self._passed_s = 0.0
        self._ended: dict[int, set[int]] = {}
        """For each member of a group that was ended as hopeless, the group's members."""
        self._back: deque[Candidate] = deque()
        """Candidates that must be lowered again."""
        self._undecided: dict[int, Lowered] = {}
        """Lowered candidates without a verdict, which are judged again when other candidates are lowered."""
        self._repeated: set[int] = set()
        """Candidates that lost their worker once, and are tried again. A second loss is a failure."""
        self._unlowered = Counter[str]()
        """Number of lowering failures with each message, except failures that a line of the user's code raised."""
        self._idle = anyio.Lock(fast_acquire=True)
        """Lock of the idle worker that looks for work. Other idle workers wait: they would find the same work."""

    async def serve(self, worker: CompileWorker) -> None:
        """Do what `_next` returns, until all candidates are compiled or, if there are `states`, until cancelled."""
        while True:
            work = self._next()
            if work is None:
                async with self._idle:
                    while (work := self._next()) is None and (self._states is not None or not self.state.finished):
                        await self.run.changed()
            if work is None:
                return
            await work(worker)

    async def ended(self) -> None:
        """Wait until all candidates are compiled and their artifacts are queued, then set `Run.compiled`."""
        self._update()
        while not self.state.finished:
            await self.run.changed()
            self._update()
        self.run.compiled.set()
        self.run.wake()

    async def end_hopeless(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """End compiles for which the whole run waits in vain, until cancelled. `sleep`: as in `Machine`."""
        while True:
            while not self._building:
                await self.run.changed()
            await sleep(STEP_S)
            self._passed_s += STEP_S  # one step, even if this program was stopped for longer
            left = sum(len(group) for group, _ in self._building.values())
            few = left <= LAST_SHARE * (left + len(self.run.recorder.state.compile_s))
            for scope, (group, began_s) in self._building.items():
                if few and self.state.waits and not self.run.measuring and self._is_hopeless(group, began_s):
                    scope.cancel()

    def _is_hopeless(self, group: Sequence[Lowered], began_s: float) -> bool:
        """Return whether a group takes too long, unless the prior expects a member to beat all measured candidates."""
        state = self.run.recorder.state
        limit = limit_s(state, group, self.state.work_of(group), self._timeout_s, LAST_FACTOR)
        others = self._ended.get(group[0].index, set()).difference(lowered.index for lowered in group)
        culprit = bool(others) and all(state.first(i).built or state.outcome(i) for i in others)
        if limit is None or state.best is None or not (culprit or self._passed_s - began_s >= limit):
            return False
        measured = [state.entry(measured.index).facts for measured in state.ranked()]
        own = [lowered.facts for lowered in group]
        return best_estimate(own, self.run.figures) >= best_estimate(measured, self.run.figures)

    def _next(self) -> Callable[[CompileWorker], Awaitable[None]] | None:
        """Return a free worker's next step: a job, or the comparison of a state. The final waits for the comparison, so
        the comparison starts once each worker has had a group, or once no job can start."""
        self._update()
        free = self.state.busy < self.state.workers - self.state.hints.resting
        compare = self._states.compare if self._states is not None and self._states.due and free else None
        if compare is None or self.state.groups < self.state.workers:
            job = self.state.next_job()
            return compare if job is None else partial(self._do, job)
        return compare

    def _update(self) -> None:
        if self.run.stopping:
            self._drop_queues()
        self.state.waiting = len(self._back) + self._proposals.statistics().current_buffer_used
        self.state.comparing = 0 if self._states is None else self._states.under_way
        self.state.hints = self._hints(self.run.measuring)

    async def _do(self, job: Job, worker: CompileWorker) -> None:
        self.state.busy += 1
        try:
            if isinstance(job, Lower):
                for candidate in self._row():
                    await self._lower(worker, candidate)
            else:
                await self._build(worker, job.group, job.reason)
        finally:
            self.state.busy -= 1
            self.run.wake()

    def _row(self) -> list[Candidate]:
        """Take the next candidate, or the next two if they differ in one axis, so they may share their lowering."""
        count = 2 if self.state.waiting > self.state.workers else 1
        row = [self._back.popleft() if self._back else self._proposals.receive_nowait() for _ in range(count)]
        if count == 2 and differences(row[0].config, row[1].config) != 1:
            self._back.appendleft(row.pop())
        return row

    async def _lower(self, worker: CompileWorker, candidate: Candidate) -> None:
        self.state.lowering += 1
        try:
            if not self.run.stopping:
                await self._lower_one(worker, candidate)
                await self._judge_undecided(worker)
        finally:
            self.state.lowering -= 1
            self.state.seen += 1

    # ---- from lowered to built

    async def _lower_one(self, worker: CompileWorker, candidate: Candidate) -> None:
        answer = await worker.run(LowerJob(candidate))
        if isinstance(answer, Lowered):
            self.run.lowered = self.run.lowered or answer
            if candidate.index == self.run.recorder.state.default_index:
                self.run.default = answer
            self.emit(
                CandidateLowered,
                worker=worker.name,
                index=answer.index,
                code_key=answer.code_key,
                source_key=answer.source_key,
                ir_digest=answer.ir_digest,
                facts=answer.facts,
                seconds=answer.seconds,
                deferred=reason_to_defer(answer.facts),
                printed=answer.printed,
            )
            await self._carry_out(worker, answer, self._judge(answer))
        elif self._repeats(worker, [candidate.index], answer.doubt):
            self._back.append(candidate)
            self.state.seen -= 1
        else:
            self._fail(worker, answer)

    async def _judge_undecided(self, worker: CompileWorker) -> None:
        """Judge the undecided candidates again, because another candidate was lowered."""
        for lowered in list(self._undecided.values()):
            verdict = self._judge(lowered)
            if verdict.becomes != "wait" and self._undecided.pop(lowered.index, None) is not None:
                await self._carry_out(worker, lowered, verdict)

    async def _carry_out(self, worker: CompileWorker, lowered: Lowered, verdict: Verdict) -> None:
        index, name = lowered.index, worker.name
        match verdict.becomes:
            case "duplicate":
                self.emit(CandidateAliased, worker=name, index=index, same_as=verdict.same_as)
                self.run.outcomes.settled(index)
            case "prune":
                likely, instead = verdict.likely, verdict.instead
                self.emit(CandidatePruned, worker=name, index=index, reason=verdict.why, likely=likely, instead=instead)
                self.run.outcomes.settled(index)
            case "wait":
                self._undecided[index] = lowered
            case _:
                known = await worker.run(FindJob(lowered))  # deferring an already compiled candidate saves nothing
                if known is None:
                    self.state.add(lowered, deferred=verdict.becomes == "defer")
                else:
                    await self._hand_on(worker, [known], COMPILED_BEFORE)

    async def _build(self, worker: CompileWorker, group: tuple[Lowered, ...], reason: str) -> None:
        self.state.building += 1
        scope = anyio.CancelScope()
        built: list[Built] | GroupFailed = []
        self._building[scope] = group, self._passed_s
        self.run.wake()  # for `end_hopeless`
        try:
            plain = self._states is not None and self._states.differs
            limit = limit_s(self.run.recorder.state, group, self.state.work_of(group), self._timeout_s)
            with scope:
                built = await worker.run(BuildJob(group, plain=plain, limit_s=limit))
        finally:
            _, began_s = self._building.pop(scope)
            self.state.building -= 1
        if scope.cancelled_caught:
            self._ended.update(dict.fromkeys(members := {lowered.index for lowered in group}, members))
            why = HOPELESS.format(limit_s=self._passed_s - began_s)
            built = GroupFailed(why) if len(group) > 1 else [Failure(group[0].index, "hopeless", why)]
        if isinstance(built, GroupFailed):
            indices = tuple(lowered.index for lowered in group)
            if self._repeats(worker, indices, built.doubt):
                self.state.retry.append(group)
            else:
                self.emit(GroupSplit, worker=worker.name, indices=indices, message=built.message)
                self.state.retry += halves(group)
            return
        for lowered, answer in zip(group, built, strict=True):
            if isinstance(answer, Artifact):
                continue
            if self._repeats(worker, [lowered.index], answer.doubt):
                self.state.retry.append((lowered,))
            else:
                self._fail(worker, answer)
        if good := [answer for answer in built if isinstance(answer, Artifact)]:
            await self._hand_on(worker, good, reason)

    async def _hand_on(self, worker: CompileWorker, artifacts: Sequence[Artifact], reason: str) -> None:
        """Record a library, and deliver its `artifacts`."""
        self.run.built(worker.name, artifacts, reason)
        if self._states is not None:
            self._states.saw(artifacts)
        for artifact in artifacts:
            await self._deliver(artifact)

    def _fail(self, worker: CompileWorker, failure: Failure) -> None:
        why = {"kind": failure.kind, "message": failure.message, "detail": failure.detail, "printed": failure.printed}
        self.emit(BuildFailed, worker=worker.name, index=failure.index, **why)
        self.run.outcomes.settled(failure.index)
        if failure.kind == "lower" and place_in(failure.detail) is None:
            self._unlowered[failure.message] += 1
            alike, state, least = self._unlowered[failure.message], self.run.recorder.state, self.state.hints.alike
            default = None if state.default_index is None else state.outcome(state.default_index)
            if least and getattr(default, "message", "") == failure.message:
                least = 2
            if self._states is not None and not state.lowered and 0 < least <= alike:
                self.run.stop("unlowered")

    def _repeats(self, worker: CompileWorker, indices: Sequence[int], doubt: str) -> bool:
        """Return whether to repeat candidates because of `doubt`, and record the repetition. Returns False if all of
        the candidates were repeated before."""
        if not doubt or self._repeated.issuperset(indices):
            return False
        self._repeated.update(indices)
        self.emit(CompileRepeated, worker=worker.name, indices=tuple(indices), reason=doubt)
        return True

    def _drop_queues(self) -> None:
        for queue in (self.state.ready, self.state.deferred, self.state.retry, self._undecided, self._back):
            queue.clear()
        while True:
            try:
                self._proposals.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                break


def limit_s(
    state: State, group: Sequence[Lowered], weight: float, most_s: float | None, factor: float = FACTOR
) -> float | None:
    """Return the seconds after which compiling `group` is hopeless; None if the user's limit `most_s` applies.

    The limit depends on each compiled candidate's share of its library's seconds. The limit grows with the group's
    `weight`, whose unit is one compile. If the default configuration is alone in a group, the user's limit applies,
    because every result is compared with the default. A larger group that exceeds its limit is compiled again in parts.
    """
    seen = state.compile_s
    default = None if state.default_index is None else state.first(state.default_index).index
    firsts = [state.first(lowered.index).index for lowered in group]
    if most_s is None or len(seen) < LEAST_COMPILED or firsts == [default]:
        return None
    usual_s = seen[math.ceil(QUANTILE * len(seen)) - 1]
    usual_s += (len(group) - 1) * seen[len(seen) // 2]  # not all members are among the slowest
    leader_s = state.entry(state.best[0]).compile_s if state.best is not None else 0.0
    limit_s = max(FLOOR_S, FACTOR * leader_s, factor * usual_s * weight / len(group))
    return round(limit_s, 1) if limit_s < most_s else None
