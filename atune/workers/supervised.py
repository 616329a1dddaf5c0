"""Supervised jobs: a process that misses a job's deadline is ended, and a failure in a used process is in doubt."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from atune.errors import RemoteError, ServerLost, UsageError, WorkerLost, WorkerTimeout, translated
from atune.model.artifact import SERVER_LOST, Failure, FailureKind
from atune.model.jobs import A, BuildJob, CompareJob, ElaborateJob, Job, LowerJob, MeasureJob, RolesJob, decoded
from atune.workers.messages import JOBS
from atune.workers.pool import Worker
from atune.workers.workers import Workers, how_it_ended

DOING: dict[type, str] = {
    LowerJob: "lowering", ElaborateJob: "elaborating", RolesJob: "elaborating",
    BuildJob: "compiling", CompareJob: "compiling", MeasureJob: "measuring",
}  # fmt: skip
"""What a process does during each kind of job, for messages."""
NOT_ALONE = "earlier candidates in its process may have caused this"
STARVED = "it got hardly any CPU time"


class Supervised:
    """A process that does the jobs of a worker, one at a time.

    The same rule holds for all jobs. If the process is fresh, a failure is accepted at once. If another candidate's
    code has run in the process, that code may have changed the process, so the failure is in doubt, and the job is
    repeated once in a fresh process. In any process, a missed deadline is accepted at once, unless the job got hardly
    any CPU time.
    """

    died: FailureKind
    """The kind of failure of a candidate that ends the process."""
    raised: FailureKind
    """The kind of failure of a candidate whose job raises an exception."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.ran = set[int | None]()
        """The candidates whose code has run in the process. None stands for any candidate of another run."""
        self.printed = ""
        """Output of the last job."""
        self._worker: Worker | None = None
        self._called = 0.0
        self._lost: int | None = None
        """The candidate whose job was running when the fork server was lost."""

    @property
    def alive(self) -> bool:
        return self._worker is not None and self._worker.alive

    async def settled(self, job: Job[A], late: Failure, limit_s: float) -> A | Failure:
        """Have the process do `job`, and return the answer or the failure of the job's candidate.

        `late`: the failure to return if the job takes more than `limit_s`. If a failure has a `doubt`, its candidate
        may not be at fault. Raises `UsageError` if the caller is at fault, and `MachineError` if the machine is at
        fault.
        """
        answer = await self._answered(job, late, limit_s)
        used = self._used_before(late.index)
        if not isinstance(job, BuildJob):  # its compilers run in separate processes
            self.ran |= {c.index for c in job.candidates} if isinstance(job, ElaborateJob) else {late.index}
        failure = failure_in(answer)
        if not used or failure is None or failure.doubt or failure.kind == "timeout" or await self._sound(failure):
            return answer
        return msgspec.structs.replace(failure, doubt=NOT_ALONE)

    async def call(self, job: Job[A], limit_s: float) -> A:
        """Have the process do `job`. While the machine is short of a resource, wait and try again. Raises
        `WorkerTimeout` after `limit_s`, `MachineError` if a shortage lasts, `WorkerLost` and `RemoteError`."""
        return decoded(job, await self.workers.until_it_works(lambda: self._send(job, limit_s)))

    async def kill(self) -> None:
        """End the process, so that the next job gets a fresh one."""
        self.ran.clear()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()

    async def _ready(self) -> Worker:
        """Return the process. A subclass may start the process here."""
        raise NotImplementedError

    async def _sound(self, failure: Failure) -> bool:
        """Tell whether the used process is certainly as good as a fresh process, so that `failure` is accepted."""
        return False

    async def _send(self, job: Job[Any], limit_s: float) -> bytes:
        worker = await self._ready()
        self._called = time.monotonic()
        try:
            return await worker.call(JOBS + job.name, msgspec.msgpack.encode(job), limit_s)
        finally:
            self.printed = worker.printed

    async def _answered(self, job: Job[A], late: Failure, limit_s: float) -> A | Failure:
        index, doing = late.index, DOING[type(job)]
        try:
            return await self.call(job, limit_s)
        except WorkerTimeout as error:
            doubt, kill_s = STARVED if error.starved else "", round(time.monotonic() - self._called - limit_s, 4)
            return msgspec.structs.replace(late, detail=error.detail, doubt=doubt, kill_s=kill_s)
        except ServerLost as error:
            twice, self._lost = self._lost == index and not isinstance(job, BuildJob), index
            return Failure(index, "worker_lost", str(error), error.detail, "" if twice else SERVER_LOST)
        except WorkerLost as error:  # SIGKILL and SIGTERM come from outside, SIGSEGV from the candidate
            how = how_it_ended(error)
            if not error.outside:
                return Failure(index, self.died, f"{doing} ended its process: {how}", error.detail)
            doubt = f"its process was lost: {how}"
            return Failure(index, "worker_lost", f"{doing} was killed: {how}", error.detail, doubt)
        except RemoteError as error:
            builds, original = isinstance(job, BuildJob), translated(error)
            if isinstance(original, UsageError) and not (builds or self._used_before(index)):
                raise original from error
            return Failure(index, "codegen" if builds else self.raised, str(error), error.detail)

    def _used_before(self, index: int) -> bool:
        """Tell whether another candidate's code has run in the process."""
        return not self.ran <= {index}


def failure_in(answer: Any) -> Failure | None:
    """Return the failure in an answer: the answer itself, or the first item of a list. None if the job succeeded."""
    first = answer[0] if isinstance(answer, list) else answer
    return first if isinstance(first, Failure) else None
