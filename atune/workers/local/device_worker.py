"""A device's process on this machine, and warnings about other users of the device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from atune.errors import (
    DevicesLost,
    RemoteError,
    ServerLost,
    WorkerError,
    WorkerLost,
    WorkerTimeout,
    WorkloadError,
    translated,
)
from atune.model.artifact import Failure, FailureKind
from atune.model.device import DeviceInfo
from atune.model.jobs import (
    A,
    FinalJob,
    Finals,
    Job,
    MeasureJob,
    Prepared,
    PrepareJob,
    Started,
    StartJob,
    decoded,
    encoded,
)
from atune.model.measurement import DISTURBS, Measurement
from atune.workers.local.workers import LOAD_TIMEOUT_S, Patience, Workers, how_it_ended
from atune.workers.processes.messages import BEGIN, MEASURE, NEIGHBOURS, Around, Neighbours, Session
from atune.workers.processes.worker import Worker
from atune.workers.system.resources import DeviceLock

SHARED_S = 2.0
"""Seconds of waiting for a device before the warning that another run measures there too."""
DOUBTFUL: tuple[FailureKind, ...] = ("fault", "launch", "load")
"""Failures that an earlier candidate in the same process may have caused."""
NOT_ALONE = "earlier candidates in its process may have caused this"
SPOILING: tuple[FailureKind, ...] = ("fault", "out_of_bounds")
"""Failures that ruin the process's context or memory, although it answers."""


@dataclass(frozen=True)
class DeviceContext:
    """Shared state of a run's device workers."""

    session: Session
    workers: Workers
    warn: Callable[[str], None]
    patience: Patience
    shared: bool = False
    """Whether other runs of this set measure on the devices, too, in turn with this one."""

    @property
    def limit_s(self) -> float:
        """Most seconds for one candidate."""
        return self.session.benchmark.benchmark_timeout_s


class LocalDeviceWorker:
    """One device's process, which a `StartJob` replaces."""

    def __init__(self, context: DeviceContext, info: DeviceInfo, cpus: Sequence[int] | None) -> None:
        self.context, self.info, self.cpus = context, info, cpus
        self.name, self._role = info.id, f"device-{info.id}"
        self._worker: Worker | None = None
        self._inputs: PrepareJob | None = None
        """What made the inputs. A new process makes them at once."""
        self._prepared = False
        self._used = False
        """Whether a candidate has run in this process."""
        self._lock = DeviceLock(info.uuid or info.id)
        self._called = 0.0
        self._noted = False
        self._lookout = Lookout(info, context.warn)

    @property
    def alive(self) -> bool:
        return self._worker is not None and self._worker.alive

    async def run(self, job: Job[A]) -> A:
        answer: Any
        match job:
            case StartJob():
                answer = await self._start()
            case PrepareJob():
                answer = await self._prepare(job)
            case MeasureJob():
                answer = await self._measure(job)
            case FinalJob():
                answer = await self._final(job)
            case _:
                raise TypeError(f"no device does {job.name}")
        return cast(A, answer)

    async def _start(self) -> Started:
        await self._stop()
        self._worker = await self.context.patience.until_it_works(self._new)
        if self._inputs is not None:
            await self._prepare(self._inputs)
        return Started(self.info)

    async def _measure(self, job: MeasureJob) -> Measurement | Failure:
        if not self._prepared:
            await self._prepare(PrepareJob(job.artifact.params, job.roles, timed=False))
        used, self._used = self._used, True
        answer = await self._measured(job)
        await self._lookout.look(self._worker, self.context.limit_s)
        if isinstance(answer, Failure):
            if used and answer.kind in DOUBTFUL:
                answer = msgspec.structs.replace(answer, doubt=NOT_ALONE)
            if answer.kind in SPOILING and self.alive:
                answered = time.monotonic()
                await self._stop()
                answer = msgspec.structs.replace(answer, kill_s=round(time.monotonic() - answered, 4))
        return answer

    async def _measured(self, job: MeasureJob) -> Measurement | Failure:
        limit, index = self.context.limit_s, job.artifact.index
        try:
            return await self._call(job, limit)
        except WorkerTimeout as error:
            late = round(time.monotonic() - self._called - limit, 4)
            message = f"ran past benchmark_timeout_s={limit:g}; killed"
            return Failure(index=index, kind="timeout", message=message, detail=error.detail, kill_s=late)
        except ServerLost:
            raise
        except WorkerLost as error:  # SIGKILL and SIGTERM come from outside; SIGSEGV is the candidate's
            message = f"the device's process died: {how_it_ended(error)}"
            if not error.outside:
                return Failure(index, "fault", message, error.detail)
            doubt = "a signal that no kernel sends killed the device's process"
            return Failure(index, "worker_lost", message, error.detail, doubt)
        except RemoteError as error:
            raise translated(error) from error

    async def _final(self, job: FinalJob) -> Finals:
        self._used = True
        await self._lookout.look(self._worker, self.context.limit_s, at_once=True)
        finals = await self._call(job, self.context.limit_s * (len(job.artifacts) + 1))
        if any(failure.kind in SPOILING for failure in finals.failures):
            await self._stop()
        return finals

    async def _prepare(self, job: PrepareJob) -> Prepared:
        """Make the inputs and run the reference, which only the device's first process times.

        A failure of the first process is the workload's: raises `WorkloadError`.
        """
        limit, first = self.context.limit_s, job.timed
        if first:
            await self._lookout.look(self._worker, limit, idle=True)
        try:
            prepared = await self._call(job, limit)
        except RemoteError as error:
            raise translated(error) from error
        except WorkerTimeout as error:
            if not first:  # an earlier process finished it in time
                raise
            message = (
                f"making the inputs and running the reference ran past benchmark_timeout_s={limit:g}: one of them "
                "hangs, or needs more time (--timeout, BenchmarkSettings(benchmark_timeout_s=…))"
            )
            raise WorkloadError(message) from error
        except WorkerLost as error:
            if not first or error.outside:
                raise
            message = f"making the inputs or running the reference ended the process: {how_it_ended(error)}"
            raise WorkloadError(message) from error
        assert self._worker is not None
        await self.context.workers.agree(self._worker, prepared.loaded_as)
        self._prepared, self._inputs = True, msgspec.structs.replace(job, timed=False)
        return prepared

    async def _new(self) -> Worker:
        """Fork a process, pin it to the device and make its context."""
        env = {"CUDA_VISIBLE_DEVICES": self.info.uuid} if self.info.uuid else {}  # CUDA reads it as it starts
        worker = await self.context.workers.spawn(self._role, env=env, cpus=self.cpus)
        session = msgspec.structs.replace(self.context.session, device=self.info.id)
        try:
            await worker.call(BEGIN, msgspec.msgpack.encode(session), LOAD_TIMEOUT_S)
            async with self._lock.held() as waited_s:  # making a context may disturb a timing on the device
                self._note(waited_s)
                reply = await worker.call(f"{MEASURE}begin", msgspec.msgpack.encode(self.info), LOAD_TIMEOUT_S)
        except WorkerError:
            await worker.kill()
            raise
        self.info = msgspec.msgpack.decode(reply, type=DeviceInfo)
        return worker

    async def _call(self, job: Job[A], timeout_s: float) -> A:
        """Have the device's process do `job` while no other run measures on the device. `timeout_s` excludes waiting.

        If the machine is short of a resource, this waits and retries.
        """
        if self._worker is None:
            raise DevicesLost(f"device {self.name} was not started")
        worker = self._worker

        async def attempt() -> bytes:
            async with self._lock.held() as waited_s:
                self._note(waited_s)
                self._called = time.monotonic()
                return await worker.call(MEASURE + job.name, encoded(job), timeout_s)

        return decoded(job, await self.context.patience.until_it_works(attempt))

    def _note(self, waited_s: float | None) -> None:
        """Warn, once, that the device is shared."""
        if waited_s is None:
            message = (
                f"another run has held device {self.name} for {self._lock.patience_s:g} s: measuring at the same time"
            )
        elif waited_s > SHARED_S and not (self._noted or self.context.shared):
            message = f"another run also measures on device {self.name}: they take turns"
        else:
            return
        self._noted = True
        self.context.warn(message)

    async def _stop(self) -> None:
        self._prepared = self._used = False
        if self._worker is not None:
            await self._worker.kill()
            self._worker = None


LOOK_S = 5.0
"""Least seconds between two checks."""
MOST_NEIGHBOURS = 8
"""Most processes of others that a run reports per device."""

BUSY_PERCENT = 20
"""Utilisation of an idle GPU, in percent, above which somebody else computes on it."""
REMEDY = "end it, or measure on another device"


class Lookout:
    """Looks for other users of one device: its process asks NVML. Warns once about each process of others."""

    def __init__(self, info: DeviceInfo, warn: Callable[[str], None]) -> None:
        self.info, self.warn = info, warn
        self._looked = float("-inf")
        self._named: set[int] = set()

    async def look(self, worker: Worker | None, limit_s: float, *, at_once: bool = False, idle: bool = False) -> None:
        """Check for other users, unless the last check was less than `LOOK_S` ago. `at_once`: check in any case.

        `idle`: the run computes nothing now.

        The process may die of the question or run past `limit_s`; its next call then reports this.
        """
        now = time.monotonic()
        if not self.info.uuid or worker is None or not worker.alive or (now - self._looked < LOOK_S and not at_once):
            return
        self._looked = now
        question = msgspec.msgpack.encode(Neighbours(program=os.getpid(), uuid=self.info.uuid, idle=idle))
        with suppress(WorkerError):
            seen = msgspec.msgpack.decode(await worker.call(NEIGHBOURS, question, limit_s), type=Around)
            if (seen.busy_percent or 0) > BUSY_PERCENT:
                self.warn(
                    f"device {self.info.id} was {seen.busy_percent} % busy before anything was measured on it: "
                    f"another program computes there and {DISTURBS}; {REMEDY}"
                )
            new = [one for one in seen.neighbours if one.pid not in self._named][: MOST_NEIGHBOURS - len(self._named)]
            self._named |= {one.pid for one in new}
            if new:
                others = ", ".join(map(str, new))
                self.warn(f"device {self.info.id} is also used by {others}: that {DISTURBS}; {REMEDY}")
