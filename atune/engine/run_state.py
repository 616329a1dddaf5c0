"""What the parts of one run share: the recorder, the signals that wake each other, and whether the run is stopping."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from atune.journal.events import ArtifactBuilt, BestChanged, CandidateMeasured
from atune.journal.recorder import Recorder
from atune.model.artifact import Artifact, KernelParam, Roles
from atune.model.candidate import Candidate
from atune.model.device import DeviceLimits
from atune.workload.workload import WorkloadSpec


class Run:
    """One run, as its compile workers, device workers and final see it. `recorder`: None for one without a journal."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.outcomes = Outcomes(self.recorder)
        self.artifacts: dict[int, Artifact] = {}
        """Libraries of the measured candidates, for the final."""
        self.params: tuple[KernelParam, ...] | None = None
        """Parameters of the first lowered candidate, for which devices make their inputs; None before that."""
        self.lowered: Candidate | None = None
        """The first candidate that was lowered."""
        self.roles = Roles()
        """The roles of these parameters, once they are found."""
        self.found_roles = anyio.Event()
        self.limits = DeviceLimits()
        """Hard limits that every device has."""
        self.spec: WorkloadSpec
        self.stopping = ""
        """Why nothing more is started; empty unless the run is stopping."""
        self.measuring = 0
        """How many devices have a candidate now."""
        self.compiled = anyio.Event()
        """Set once nothing is left to compile."""
        self.measured = anyio.Event()
        """Set once nothing is left to measure."""
        self._changed = anyio.Event()

    def stop(self, reason: str) -> None:
        """Start nothing more; calls under way end. The first reason counts."""
        self.stopping = self.stopping or reason
        self.wake()

    def wake(self) -> None:
        """Wake everyone who waits in `changed`."""
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        """Wait for the next `wake`."""
        await self._changed.wait()

    def built(self, worker: str, artifacts: Sequence[Artifact], reason: str) -> None:
        """Record a library that was built or found, with all its `artifacts`."""
        first = artifacts[0]
        self.recorder.emit(
            ArtifactBuilt,
            worker=worker,
            indices=tuple(artifact.index for artifact in artifacts),
            file=first.path.rpartition("/")[2],
            seconds=first.seconds,
            reason=reason,
            compiler=first.compiler,
            why=first.why,
            machine=tuple(artifact.machine for artifact in artifacts) if first.machine is not None else (),
        )


@dataclass(frozen=True)
class Outcome:
    """A recorded outcome that may not be on the disk yet. `seq`: that of its event or soon after."""

    index: int
    seq: int
    latency_ms: float | None
    best: tuple[int, float] | None
    worker: str


Tell = Callable[[Outcome], None]


class Outcomes:
    """Acknowledges outcomes: reports them to the strategy and the listeners as soon as they are on the disk."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tell: Tell = lambda outcome: None
        """Tells the strategy of an outcome, once there is a strategy."""
        self._unsynced: deque[Outcome] = deque()
        self._to_sync = anyio.Event()
        self._acknowledging = anyio.Lock()

    def settled(
        self, index: int, latency_ms: float | None = None, best: tuple[int, float] | None = None, worker: str = "engine"
    ) -> None:
        """Acknowledge a candidate's outcome as soon as it is on the disk. Does not wait for that."""
        self._unsynced.append(Outcome(index, self.recorder.state.last_seq, latency_ms, best, worker))
        if self.recorder.journal is None:
            self._tell(1)
        else:
            self._to_sync.set()

    def sync_soon(self) -> None:
        self._to_sync.set()

    async def keep_synced(self) -> None:
        """Sync while there are new outcomes. Those that come during one sync share the next."""
        while True:
            await self._to_sync.wait()
            self._to_sync = anyio.Event()
            await self.acknowledge()

    async def acknowledge(self) -> None:
        """Sync, then report the outcomes that were recorded before to the strategy and the listeners."""
        async with self._acknowledging:
            count = len(self._unsynced)
            await self.recorder.sync()
            self._tell(count)

    def _tell(self, count: int) -> None:
        for _ in range(count):
            outcome = self._unsynced.popleft()
            self.tell(outcome)
            if outcome.best is not None and self._still_counts(*outcome.best):
                self.recorder.emit(
                    BestChanged, worker=outcome.worker, index=outcome.best[0], latency_ms=outcome.best[1]
                )

    def _still_counts(self, index: int, latency_ms: float) -> bool:
        """Whether the measurement counts; that of a device excluded since then does not."""
        outcome = self.recorder.state.outcome(index)
        return isinstance(outcome, CandidateMeasured) and outcome.timing.latency_ms == latency_ms


async def keep_time(run: Run, seconds: float | None) -> None:
    """Stop `run` once it took so many seconds, in all its parts together. Returns once all is measured."""
    if seconds is None:
        return
    with anyio.move_on_after(max(0.0, seconds - run.recorder.elapsed_s)) as left:
        await run.measured.wait()
    if left.cancelled_caught:
        run.stop("budget")
