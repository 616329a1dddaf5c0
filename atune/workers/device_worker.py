"""A device's process on this machine, the lock by which runs take turns on it, and warnings about its other users."""

from __future__ import annotations

import fcntl
import functools
import os
import threading
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import msgspec

from atune.errors import (
    AtuneError,
    DevicesLost,
    RemoteError,
    WorkerError,
    WorkerLost,
    WorkerTimeout,
    WorkloadError,
    translated,
)
from atune.model.artifact import Artifact, Failure, FailureKind, fitting
from atune.model.device import DeviceInfo
from atune.model.folders import private_root
from atune.model.jobs import (
    A,
    Bits,
    BitsJob,
    FinalJob,
    Finals,
    Job,
    MeasureJob,
    Prepared,
    PrepareJob,
    Started,
    StartJob,
)
from atune.model.measurement import DISTURBS, Measurement
from atune.workers.messages import BEGIN, NEIGHBOURS, OPEN_DEVICE, REST_DEVICE, Neighbours, Session
from atune.workers.pool import Worker
from atune.workers.resources import ShortOf
from atune.workers.supervised import Supervised
from atune.workers.waiting import Deadline
from atune.workers.workers import Workers, how_it_ended, process_folders

MEMORY_POLL_S = 0.2
"""Seconds between two looks whether another run has ended."""
SHARED_S = 2.0
"""Seconds of waiting for a device before the warning that another run measures there too."""
DOUBTFUL: tuple[FailureKind, ...] = ("fault", "launch", "load", "out_of_memory")
"""Failures that are always in doubt in a used process. Others count there while the last right candidate is still
right: repeating each of them would take a new context and new inputs."""
SPOILING: tuple[FailureKind, ...] = ("fault", "out_of_bounds")
"""Failures that ruin the process's context or memory, although it answers."""
BUSY_PERCENT = 20
"""Utilisation of an idle GPU, in percent, above which somebody else computes on it."""
LOCK_PATIENCE_S = 180.0
"""Most seconds of waiting for a lock. The program that holds it may be stopped."""
LOCK_POLL_S = (0.0005, 0.005)
"""Seconds between the first two tries, and between the last two."""
REMEDY = "end it, or measure on another device"


class MemoryClaim:
    """A run's claim on `n_bytes` of each of its devices, of the `limit` for all runs of this program together.

    It is granted for all devices at once and held until the run ends: runs never wait for each other.
    """

    _held: ClassVar[list[MemoryClaim]] = []
    _lock: ClassVar = threading.Lock()
    """Runs may be in several threads."""

    def __init__(self, devices: Collection[str], n_bytes: int, limit: int) -> None:
        self._devices, self._n_bytes, self._limit = frozenset(devices), n_bytes, limit

    def is_granted(self) -> bool:
        """Tell whether it is held; from now on, if the other runs leave enough."""
        with self._lock:
            used = [sum(one._n_bytes for one in self._held if device in one._devices) for device in self._devices]
            if self not in self._held and self._n_bytes + max(used, default=0) <= self._limit:
                self._held.append(self)
            return self in self._held

    def release(self) -> None:
        with self._lock, suppress(ValueError):
            self._held.remove(self)


class LocalDeviceWorker(Supervised):
    """One device's process, which a `StartJob` replaces.

    `idle`: processes that other runs of the same set have left, which measure on the device in turn with this one; None
    without a set. `claim`: its run's claim on memory; None without a limit.
    """

    died, raised = "fault", "launch"

    def __init__(
        self,
        workers: Workers,
        session: Session,
        info: DeviceInfo,
        cpus: Sequence[int] | None,
        *,
        idle: list[Worker] | None = None,
        claim: MemoryClaim | None = None,
    ) -> None:
        super().__init__(workers)
        self.session, self.info, self.cpus, self._idle = session, info, cpus, idle
        self.claim = claim
        self.name, self._role = info.id, f"device-{info.id}"
        self._started = Started(info)
        self._inputs: PrepareJob | None = None
        """The job that made the inputs. A new process repeats it at once."""
        self._prepared = False
        self._said = ""
        """What inputs and reference printed when they were made."""
        self._right: MeasureJob | None = None
        """A candidate that was measured."""
        self._accused = 0
        """How many candidates have failed since then while that one, run again, was still right."""
        self._device = info.uuid or info.id
        self._named: set[int] = set()
        """Processes of others on the device that the user was told of."""

    async def run(self, job: Job[A]) -> A:
        if isinstance(job, StartJob):
            return cast(A, await self._start())
        return cast(A, await getattr(self, f"_{job.name}")(job))

    async def _start(self) -> Started:
        await self.kill()
        await self._wait_for_memory()
        self._worker = await self._handed_on() or await self.workers.until_it_works(self._new)
        if self._inputs is not None:
            await self._prepare(self._inputs)
        return self._started

    async def _measure(self, job: MeasureJob) -> Measurement | Failure:
        if not self._prepared:
            await self._prepare(PrepareJob(job.artifact.params, fitting(job.artifact.roles, job.roles), timed=False))
        limit_s = self._limit_s
        late = Failure(job.artifact.index, "timeout", f"ran past benchmark_timeout_s={limit_s:g}; killed")
        answer = await self.settled(job, late, limit_s)
        answer = msgspec.structs.replace(answer, printed=self._said + self.printed)
        if not isinstance(answer, Failure):
            self._right, self._accused = job, 0
        elif answer.kind in SPOILING and self.alive:
            answered = time.monotonic()
            await self.kill()
            answer = msgspec.structs.replace(answer, kill_s=round(time.monotonic() - answered, 4))
        return answer

    async def _sound(self, failure: Failure) -> bool:
        """Tell whether the last right candidate is still right in the process.

        The second failure beside the same one is in doubt all the same: that one may be right in this process alone.
        """
        if failure.kind in DOUBTFUL or self._right is None or not self.alive:
            return False
        again = msgspec.structs.replace(self._right, best_ms=0.0)  # it is hardly timed
        printed, lost = self.printed, self._lost
        answer = await self._answered(again, failure, self._limit_s)
        self.printed, self._lost = printed, lost
        if not isinstance(answer, Measurement):
            return False
        self._accused += 1
        return self._accused != 2

    async def _bits(self, job: BitsJob) -> Bits:
        self._use(job.artifacts)
        return await self.call(job, self._limit_s * (len(job.artifacts) + 1))

    async def _final(self, job: FinalJob) -> Finals:
        self._use(job.artifacts)
        await self._look()
        finals = await self.call(job, self._limit_s * (len(job.artifacts) + 1))
        if any(failure.kind in SPOILING for failure in finals.failures):
            await self.kill()
        return finals

    def _use(self, artifacts: Sequence[Artifact]) -> None:
        self.ran |= {artifact.index for artifact in artifacts}

    async def _prepare(self, job: PrepareJob) -> Prepared:
        """Make the inputs and run the reference, which only the device's first process times.

        A failure of the first process is the workload's: raises `WorkloadError`. A process that another run has left
        may be spoiled, or have an earlier version of the workload's file: where it fails, a new one takes its place.
        """
        if self.ran:
            with suppress(AtuneError):
                return await self._made(job)
            await self.kill()
            self._worker = await self.workers.until_it_works(self._new)
        return await self._made(job)

    async def _made(self, job: PrepareJob) -> Prepared:
        limit, first = self._limit_s, job.timed
        if first:
            await self._look(idle=True)
        try:
            prepared = await self.call(job, limit)
        except RemoteError as error:
            if error.kind == ShortOf.__name__ and self._inputs is None:  # others held the device's memory all the time
                raise WorkloadError(str(error).partition(": ")[2]) from error
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
        self._said = self.printed
        await self.workers.agree(self._worker, prepared.loaded_as)
        self._prepared, self._inputs = True, msgspec.structs.replace(job, timed=False)
        return prepared

    async def _new(self) -> Worker:
        """Fork a process, pin it to the device and make its context."""
        env = {"CUDA_VISIBLE_DEVICES": self.info.uuid} if self.info.uuid else {}  # CUDA reads it as it starts
        if self._idle is not None:
            env |= process_folders(str(self.workers.server.run_dir))  # it may outlive the run
        worker = await self.workers.spawn(self._role, env=env, cpus=self.cpus)
        try:
            await self._begin(worker)
        except WorkerError:
            await worker.kill()
            raise
        return worker

    async def _handed_on(self) -> Worker | None:
        """Return a process that another run has left, with its context; none in the place of a lost one."""
        while self._idle and self._inputs is None:
            if (worker := self._idle.pop()).alive:
                self.workers.adopt(worker)
                with suppress(WorkerError):
                    await self._begin(worker)
                    self.ran = {None}
                    return worker
        return None

    async def _begin(self, worker: Worker) -> None:
        session = msgspec.structs.replace(self.session, device=self.info.id)
        await worker.call(BEGIN, msgspec.msgpack.encode(session))
        async with device_lock(self._device) as waited_s:  # making a context may disturb a timing on the device
            self._note(waited_s)
            reply = await worker.call(OPEN_DEVICE, msgspec.msgpack.encode(self.info))
        self._started = msgspec.msgpack.decode(reply, type=Started)

    async def _ready(self) -> Worker:
        if self._worker is None:
            raise DevicesLost(f"device {self.name} was not started")
        return self._worker

    async def _send(self, job: Job[Any], limit_s: float) -> bytes:
        """Do as `Supervised`, while no other run measures on the device. `limit_s` excludes waiting for that."""
        async with device_lock(self._device) as waited_s:
            self._note(waited_s)
            return await super()._send(job, limit_s)

    def _note(self, waited_s: float | None) -> None:
        """Warn, once, that the device is shared."""
        if waited_s is None:
            self.workers.warn(
                f"another run has held device {self.name} for {LOCK_PATIENCE_S:g} s: measuring at the same time"
            )
        elif waited_s > SHARED_S and self._idle is None:
            what = f"another run also measures on device {self.name}: they take turns"
            self.workers.warn_once(what, what)

    async def _look(self, *, idle: bool = False) -> None:
        """Warn, once about each, of processes of others on a GPU: its process asks NVML. `idle`: nothing computes now.

        The process may die of the question or run past the deadline; its next call then reports this.
        """
        if not self.info.uuid or self._worker is None or not self._worker.alive:
            return
        question = msgspec.msgpack.encode(Neighbours(program=os.getpid(), uuid=self.info.uuid, idle=idle))
        with suppress(WorkerError):
            reply = await self._worker.call(NEIGHBOURS, question, self._limit_s)
            others, busy_percent = msgspec.msgpack.decode(reply, type=tuple[dict[int, str], int])
            if busy_percent > BUSY_PERCENT:
                self.workers.warn(
                    f"device {self.name} was {busy_percent} % busy before anything was measured on it: "
                    f"another program computes there and {DISTURBS}; {REMEDY}"
                )
            new = [text for pid, text in others.items() if pid not in self._named]
            self._named |= others.keys()
            if new:
                self.workers.warn(f"device {self.name} is also used by {', '.join(new)}: that {DISTURBS}; {REMEDY}")

    async def hand_on(self) -> None:
        """Leave the process to another run of the set, without what it has of this one."""
        worker, self._worker = self._worker, None
        if worker is None or self._idle is None or not (worker.alive and self._prepared):
            return
        with suppress(WorkerError):
            async with device_lock(self._device):  # freeing memory may disturb a timing, too
                await worker.call(REST_DEVICE, b"", self._limit_s)
            self.workers.release(worker)
            self._idle.append(worker)

    async def _wait_for_memory(self) -> None:
        """Wait until this program's other runs leave what this one's processes may use of the limit."""
        while self.claim is not None and not self.claim.is_granted():
            what = f"another run uses the memory that memory_limit allows on device {self.name}: waiting"
            self.workers.warn_once("memory", what)
            await anyio.sleep(MEMORY_POLL_S)

    async def kill(self) -> None:
        self._prepared = False
        await super().kill()

    @property
    def _limit_s(self) -> float:
        """Most seconds for one candidate."""
        return self.session.benchmark.benchmark_timeout_s


@asynccontextmanager
async def device_lock(
    device: str, folder: Path | None = None, patience_s: float = LOCK_PATIENCE_S
) -> AsyncGenerator[float | None, None]:
    """Hold a device, by its UUID or name. Yields the seconds of waiting, or None if the wait was given up.

    It is two advisory locks (flock) on files of `folder`, or below `$TMPDIR/atune-UID`. The holder of the first one may
    wait for the second, so that a run that measures without pause cannot overtake a waiting run. The kernel releases a
    lock when its program ends in any way. Cancelling the wait leaves nothing behind.
    """
    folder = folder or private_root()
    deadline, began = Deadline(patience_s), time.monotonic()
    with ExitStack() as turn, ExitStack() as lock:
        got = await _locked(folder / f"device-{device}.turn", turn, deadline)
        got = got and await _locked(folder / f"device-{device}.lock", lock, deadline)
        turn.close()
        yield time.monotonic() - began if got else None


async def _locked(path: Path, stack: ExitStack, deadline: Deadline) -> bool:
    """Lock `path` until `stack` is closed. Returns False if that took too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    stack.callback(os.close, fd)
    pause = LOCK_POLL_S[0]
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                await deadline.wait(functools.partial(anyio.sleep, pause))
            except TimeoutError:
                return False
            pause = min(2 * pause, LOCK_POLL_S[1])
        else:
            stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)  # also where a forked child has the descriptor, too
            return True
