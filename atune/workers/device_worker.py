"""A device's process on this machine, the lock by which runs take turns, and warnings about other users."""

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
from atune.model.artifact import Failure, FailureKind, fitting
from atune.model.device import DeviceInfo
from atune.model.folders import private_root
from atune.model.jobs import (
    PAST_BENCHMARK_TIMEOUT,
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
"""Seconds between two checks of whether another run has released its memory."""
SHARED_S = 2.0
"""Seconds of waiting for a device after which a warning says that another run also measures on the device."""
DOUBTFUL: tuple[FailureKind, ...] = ("fault", "launch", "load", "out_of_memory")
"""Kinds of failure that are always in doubt in a used process. A failure of another kind is accepted if the last
correct candidate is still correct in that process, because repeating every failure would need many new contexts."""
SPOILING: tuple[FailureKind, ...] = ("fault", "out_of_bounds")
"""Kinds of failure that damage the context or the memory of a process, even if the process still answers."""
BUSY_PERCENT = 20
"""If a GPU's utilisation exceeds this percentage while the run does not use the GPU, another program computes on it."""
LOCK_PATIENCE_S = 180.0
"""Longest wait for a lock, in seconds. The wait is limited, because the program that holds the lock may be stopped."""
LOCK_POLL_S = (0.0005, 0.005)
"""Seconds between the first two attempts to lock a file, and the longest pause between later attempts."""
REMEDY = "end it, or measure on another device"


class MemoryClaim:
    """A run's claim to `n_bytes` of memory on each of its devices. All claims on a device together are at most `limit`.
    A claim is granted for all devices at the same time and held until the run ends, so that runs cannot deadlock."""

    _held: ClassVar[list[MemoryClaim]] = []
    _lock: ClassVar = threading.Lock()
    """A lock for the claims, because this program's runs may be in several threads."""

    def __init__(self, devices: Collection[str], n_bytes: int, limit: int) -> None:
        self._devices, self._n_bytes, self._limit = frozenset(devices), n_bytes, limit

    def is_granted(self) -> bool:
        """Take the claim if the other runs leave enough memory. Return whether the claim is held."""
        with self._lock:
            used = [sum(held._n_bytes for held in self._held if device in held._devices) for device in self._devices]
            if self not in self._held and self._n_bytes + max(used, default=0) <= self._limit:
                self._held.append(self)
            return self in self._held

    def release(self) -> None:
        with self._lock, suppress(ValueError):
            self._held.remove(self)


class LocalDeviceWorker(Supervised):
    """The worker of a device. A `StartJob` replaces the worker's process.

    `idle`: processes that other runs of the same set have left, and that this run may take over; None outside a set.
    The runs of a set measure on a device in turn. `claim`: the run's claim to memory; None without a limit.
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
        """The job that made the inputs. Each new process repeats the job."""
        self._prepared = False
        self._said = ""
        """The text that was printed while the inputs were made and the reference ran."""
        self._right: MeasureJob | None = None
        """The job of the last candidate that was measured. A measured candidate is correct."""
        self._accused = 0
        """Number of failed candidates after which `_right` was repeated and was still correct."""
        self._device = info.uuid or info.id
        self._named: set[int] = set()
        """Pids of other users' processes on the device that a warning has already named."""

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
        late = Failure(job.artifact.index, "timeout", PAST_BENCHMARK_TIMEOUT.format(limit_s=limit_s))
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
        """Tell whether the last correct candidate is still correct in the process. If two candidates fail after the
        same correct candidate, the second failure is in doubt, because the correct candidate may be correct only in
        this process."""
        if failure.kind in DOUBTFUL or self._right is None or not self.alive:
            return False
        again = msgspec.structs.replace(self._right, best_ms=0.0)  # 0.0, so that timing takes hardly any time
        printed, lost = self.printed, self._lost
        answer = await self._answered(again, failure, self._limit_s)
        self.printed, self._lost = printed, lost
        if not isinstance(answer, Measurement):
            return False
        self._accused += 1
        return self._accused != 2

    async def _bits(self, job: BitsJob) -> Bits:
        self.ran |= {artifact.index for artifact in job.artifacts}
        return await self.call(job, self._limit_s * (len(job.artifacts) + 1))

    async def _final(self, job: FinalJob) -> Finals:
        self.ran |= {artifact.index for artifact in job.artifacts}
        await self._look()
        finals = await self.call(job, self._limit_s * (len(job.artifacts) + 1))
        if any(failure.kind in SPOILING for failure in finals.failures):
            await self.kill()
        return finals

    async def _prepare(self, job: PrepareJob) -> Prepared:
        """Make the inputs and run the reference. Only the device's first process times the reference.

        If the first process fails, raises `WorkloadError`, because the workload must be at fault. A process that
        another run has left may be spoiled, or have loaded an old version of the workload's file, so it is replaced if
        it fails.
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
            if error.kind == ShortOf.__name__ and self._inputs is None:  # other programs held the memory all along
                raise WorkloadError(str(error).partition(": ")[2]) from error
            raise translated(error) from error
        except WorkerTimeout as error:
            if not first:  # an earlier process met the same limit
                raise
            message = (
                f"making the inputs and running the reference took more than benchmark_timeout_s={limit:g}. If neither "
                "hangs, allow more time (--timeout, BenchmarkSettings(benchmark_timeout_s=…))"
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
        """Fork a process that sees only this device, and make the device's context in the process."""
        env = {"CUDA_VISIBLE_DEVICES": self.info.uuid} if self.info.uuid else {}  # read when CUDA starts
        if self._idle is not None:
            env |= process_folders(str(self.workers.server.process.folder))  # the process may outlive the run
        worker = await self.workers.spawn(self._role, env=env, cpus=self.cpus)
        try:
            await self._begin(worker)
        except WorkerError:
            await worker.kill()
            raise
        return worker

    async def _handed_on(self) -> Worker | None:
        """Take over a process that another run has left, with its context. Return None if no process is left, or if a
        lost process must be replaced."""
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
        """Send `job` as `Supervised` does, but first wait until no other run measures on the device. Time spent on
        waiting for the device does not count towards `limit_s`."""
        async with device_lock(self._device) as waited_s:
            self._note(waited_s)
            return await super()._send(job, limit_s)

    def _note(self, waited_s: float | None) -> None:
        """Warn that another run uses the device: each time that this run gives up waiting, and otherwise only once."""
        if waited_s is None:
            held = f"another run has held device {self.name} for {LOCK_PATIENCE_S:g} s"
            self.workers.warn(f"{held}, so this run measures at the same time")
        elif waited_s > SHARED_S and self._idle is None:
            message = f"another run also measures on device {self.name}, so the runs take turns"
            self.workers.warn_once(message, message)

    async def _look(self, *, idle: bool = False) -> None:
        """Have the process ask NVML for other users of its GPU, and warn of each user once. `idle`: no timing has
        begun. If the request kills the process or takes too long, the next call reports the error."""
        if not self.info.uuid or self._worker is None or not self._worker.alive:
            return
        question = msgspec.msgpack.encode(Neighbours(program=os.getpid(), uuid=self.info.uuid, idle=idle))
        with suppress(WorkerError):
            reply = await self._worker.call(NEIGHBOURS, question, self._limit_s)
            others, busy_percent = msgspec.msgpack.decode(reply, type=tuple[dict[int, str], int])
            if busy_percent > BUSY_PERCENT:
                self.workers.warn(
                    f"device {self.name} was {busy_percent} % busy before the run used it, because another program "
                    f"computes there and {DISTURBS}; {REMEDY}"
                )
            new = [text for pid, text in others.items() if pid not in self._named]
            self._named |= others.keys()
            if new:
                self.workers.warn(f"device {self.name} is also used by {', '.join(new)}, which {DISTURBS}; {REMEDY}")

    async def hand_on(self) -> None:
        """Remove everything of this run from the process, and leave the process to another run of the set."""
        worker, self._worker = self._worker, None
        if worker is None or self._idle is None or not (worker.alive and self._prepared):
            return
        with suppress(WorkerError):
            async with device_lock(self._device):  # freeing memory may disturb a timing, too
                await worker.call(REST_DEVICE, b"", self._limit_s)
            self.workers.release(worker)
            self._idle.append(worker)

    async def _wait_for_memory(self) -> None:
        """Wait until the other runs of this program leave enough of the memory limit for this run."""
        while self.claim is not None and not self.claim.is_granted():
            waits = f"waiting, because another run uses the memory that memory_limit allows on device {self.name}"
            self.workers.warn_once("memory", waits)
            await anyio.sleep(MEMORY_POLL_S)

    async def kill(self) -> None:
        self._prepared = False
        await super().kill()

    @property
    def _limit_s(self) -> float:
        """Time limit for measuring a candidate, in seconds."""
        return self.session.benchmark.benchmark_timeout_s


@asynccontextmanager
async def device_lock(
    device: str, folder: Path | None = None, patience_s: float = LOCK_PATIENCE_S
) -> AsyncGenerator[float | None, None]:
    """Hold the lock of `device`, a UUID or a name. Yields the seconds of waiting, or None if the wait was given up.

    The lock consists of two advisory locks (flock) on files in `folder`, by default below `$TMPDIR/atune-UID`. Only the
    holder of the first lock waits for the second lock, so a run that measures without pause cannot overtake a waiting
    run. The kernel releases both locks, no matter how the program ends. A cancelled wait leaves no lock behind.
    """
    folder = folder or private_root()
    deadline, began = Deadline(patience_s), time.monotonic()
    with ExitStack() as turn, ExitStack() as lock:
        got = await _locked(folder / f"device-{device}.turn", turn, deadline)
        got = got and await _locked(folder / f"device-{device}.lock", lock, deadline)
        turn.close()
        yield time.monotonic() - began if got else None


async def _locked(path: Path, stack: ExitStack, deadline: Deadline) -> bool:
    """Lock `path` until `stack` is closed. Return False if the deadline passes before the lock is free."""
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
            stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)  # even if a forked child has the descriptor, too
            return True
