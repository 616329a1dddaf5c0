"""What the parts of one run share: where they record, what they wake each other by, and whether the run is to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from atune.journal.events import ArtifactBuilt, BestChanged, CandidateMeasured
from atune.journal.recorder import Recorder
from atune.model.artifact import Artifact
from atune.model.device import DeviceLimits
from atune.workload.workload import WorkloadSpec


class Signals:
    """What the parts of one run wake each other by, and whether it is to end."""

    def __init__(self) -> None:
        self.stopping = ""
        """Why nothing more is to be started; empty while the run goes on."""
        self.measuring = 0
        """Devices that have a candidate now."""
        self.compiled = anyio.Event()
        """Set once nothing is left to compile."""
        self.measured = anyio.Event()
        """Set once nothing is left to measure."""
        self._changed = anyio.Event()

    def stop(self, reason: str) -> None:
        """Have nothing more started; what is under way ends. The first reason counts."""
        self.stopping = self.stopping or reason
        self.wake()

    def wake(self) -> None:
        """Have everyone who waits in `changed` look again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        """Wait for the next `wake`."""
        await self._changed.wait()


class Run(Signals):
    """One run, as its compile workers, device workers and final see it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.outcomes = Outcomes(recorder)
        self.artifacts: dict[int, Artifact] = {}
        """Libraries of the candidates that were measured: the final's."""
        self.limits = DeviceLimits()
        """Hard limits that every device has."""
        self.spec: WorkloadSpec

    def built(self, worker: str, artifacts: Sequence[Artifact], reason: str, seconds: float) -> None:
        """Record a library that was built, or found, with all of `artifacts` in it."""
        first = artifacts[0]
        self.recorder.emit(
            ArtifactBuilt,
            worker=worker,
            indices=tuple(artifact.index for artifact in artifacts),
            file=first.path.rpartition("/")[2],
            seconds=seconds,
            reason=reason,
            compiler=first.compiler,
            why=first.why,
            words=first.words if seconds else "",
            machine=tuple(artifact.machine for artifact in artifacts) if first.machine is not None else (),
        )


@dataclass(frozen=True)
class Outcome:
    """A candidate's outcome that is recorded and not yet known to be on the disk. `seq`: its event's, or soon after."""

    index: int
    seq: int
    latency_ms: float | None
    best: tuple[int, float] | None
    worker: str


Tell = Callable[[Outcome], None]


class Outcomes:
    """Acknowledges outcomes: tells the strategy and everyone of them as soon as they are on the disk."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tell: Tell
        """The strategy's, once there is one."""
        self._unsynced: deque[Outcome] = deque()
        self._to_sync = anyio.Event()
        self._acknowledging = anyio.Lock()

    def settled(
        self, index: int, latency_ms: float | None = None, best: tuple[int, float] | None = None, worker: str = "engine"
    ) -> None:
        """Acknowledge a candidate's outcome as soon as it is on the disk; the worker goes on meanwhile."""
        self._unsynced.append(Outcome(index, self.recorder.state.last_seq, latency_ms, best, worker))
        if self.recorder.journal is None:
            self._tell(1)
        else:
            self._to_sync.set()

    def sync_soon(self) -> None:
        self._to_sync.set()

    async def keep_synced(self) -> None:
        """Sync again and again while there is something new: outcomes that come during one sync share the next."""
        while True:
            await self._to_sync.wait()
            self._to_sync = anyio.Event()
            await self.acknowledge()

    async def acknowledge(self) -> None:
        """Sync, then tell the strategy and everyone about the outcomes that were recorded before."""
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
        """Whether the figure stands; that of a device that was left out meanwhile does not."""
        outcome = self.recorder.state.outcome(index)
        return isinstance(outcome, CandidateMeasured) and outcome.timing.latency_ms == latency_ms
