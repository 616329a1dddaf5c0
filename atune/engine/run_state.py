"""State that the parts of one run share: its recorder, and the signals that wake them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from atune.errors import UsageError, name_and_message
from atune.journal.events import ArtifactBuilt, BestChanged, CandidateMeasured, Event
from atune.journal.state import State
from atune.journal.writer import Journal
from atune.model.artifact import Artifact, Lowered, Roles
from atune.model.device import DeviceLimits
from atune.reporting.log import Log, event_log
from atune.workload.workload import WorkloadSpec

Opened = TypeVar("Opened")


def _close(opened: Any) -> None:
    if opened is not None and opened[0] is not None:
        opened[0].close()


async def opened_aside(start: Callable[[], Opened], close: Callable[[Opened], object] = _close) -> Opened:
    """Return what `start` returns, which opens a journal, or what `close` takes, in a thread.

    After a cancellation the thread ends on its own, and then leaves nothing open, and no lock.
    """
    opened: Future[Opened] = Future()
    try:
        await anyio.to_thread.run_sync(lambda: opened.set_result(start()), abandon_on_cancel=True)
    except BaseException:
        opened.add_done_callback(lambda opened: close(opened.result()))
        raise
    return opened.result()


Listener = Callable[[Event], None]


class Listeners:
    """Calls the caller's `functions` with each event. What one raises ends the run: it cancels the block of `ending`,
    which raises it."""

    def __init__(self, on_event: Listener | None, log: Log | None) -> None:
        self.functions = [event_log(log)]
        if on_event is not None:
            self.functions.insert(0, lambda event, *_: on_event(event))
        self.asked = on_event is not None or bool(log)
        """Whether the caller gave a listener or a logger."""
        self.of: tuple[Any, str] = None, ""
        """The state of the next event's run, and the name of its journal."""
        self.raised: BaseException | None = None

    def __call__(self, event: Event) -> None:
        for function in list(self.functions):
            try:
                function(event, *self.of)
            except BaseException as raised:
                self.functions.remove(function)
                error, why = raised, f"a listener of events raised {name_and_message(raised)}".removesuffix(": ")
                if isinstance(raised, (anyio.get_cancelled_exc_class(), GeneratorExit, StopIteration)):
                    error = UsageError(why)  # coroutines would take those for their own
                    error.__cause__ = raised
                error.add_note(f"{why}, which ended the run")
                self.raised = self.raised or error
                self._scope.cancel()

    @contextmanager
    def ending(self) -> Iterator[None]:
        with anyio.CancelScope() as self._scope:
            yield
        if self.raised is not None:
            raise self.raised


EVENTS_AT_ONCE = 100
"""Events of earlier parts that are folded, and outcomes that a strategy is told, before the event loop has its turn:
about 2 ms."""


class Recorder:
    """Numbers, stamps, writes, folds and hands on events. Synchronous, so that events have one order."""

    def __init__(self, journal: Journal | None = None, listeners: tuple[Listener, ...] = ()) -> None:
        self.state = State()
        self.journal = journal
        self.listeners = list(listeners)
        self._seq = 0
        self.emitted = 0
        """Events of this part."""
        self._before_s = 0.0
        self._started = time.monotonic()

    async def go_on(self, past: Iterable[Event]) -> None:
        """Fold the events of the run's earlier parts, before any other. Works in slices, so that the event loop is not
        blocked.

        Listeners get them first, and the run's clock goes on where it stopped.
        """
        for count, event in enumerate(past, 1):
            self._hand_on(event)
            if count % EVENTS_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        self._seq = self.state.last_seq + 1
        self._before_s = max(self.state.wall_s, self.state.last_mono) if self._seq else 0.0
        self._started = time.monotonic()

    async def take_over(self, events: Sequence[Event]) -> None:
        """Record the events of another run, whose result is the result of this one."""
        if self.journal is not None:
            for event in events:
                self.journal.append(event)
        await self.go_on(events)

    @property
    def part_s(self) -> float:
        """Seconds since this part of the run started."""
        return time.monotonic() - self._started

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run, its earlier parts included."""
        return self._before_s + self.part_s

    def emit(self, kind: type[Event], /, *, worker: str = "engine", **fields: Any) -> None:
        """Record one event. Raises `MachineError` where the journal cannot be written: the run cannot go on then."""
        event = kind(seq=self._seq, time=round(time.time(), 6), mono=round(self.elapsed_s, 6), worker=worker, **fields)
        if self.journal is not None:
            self.journal.append(event)
        self._seq += 1
        self.emitted += 1
        self._hand_on(event)

    async def sync(self) -> None:
        """Return once everything recorded so far is on the disk."""
        if self.journal is not None:
            await self.journal.sync()

    def _hand_on(self, event: Event) -> None:
        self.state.apply(event)
        for listener in list(self.listeners):
            listener(event)


class Run:
    """One run, as its compile workers, device workers and final see it. `recorder`: None for one without a journal."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.outcomes = Outcomes(self.recorder, self.wake)
        self.artifacts: dict[int, Artifact] = {}
        """Libraries of the measured candidates, for the final."""
        self.lowered: Lowered | None = None
        """The first lowered candidate, for whose parameters devices make their inputs; None before that."""
        self.default: Lowered | None = None
        """The default, by whose parameters inputs are judged that misfit those; None before it is lowered."""
        self.roles = Roles()
        """The roles of the parameters of the first candidate that elaborates, the default if it does."""
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
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
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
class SettledOutcome:
    """A recorded outcome that may not be on the disk yet."""

    index: int
    latency_ms: float | None
    best: tuple[int, float] | None
    worker: str


class Outcomes:
    """Acknowledges outcomes: queues them for the strategy, and tells the listeners, as soon as they are on the disk."""

    def __init__(self, recorder: Recorder, wake: Callable[[], None]) -> None:
        self.recorder, self._wake = recorder, wake
        self.untold: deque[SettledOutcome] = deque()
        """Outcomes on the disk, which the strategy gets before it is asked again."""
        self._unsynced: deque[SettledOutcome] = deque()
        self._to_sync = anyio.Event()
        self._acknowledging = anyio.Lock()

    def settled(
        self, index: int, latency_ms: float | None = None, best: tuple[int, float] | None = None, worker: str = "engine"
    ) -> None:
        """Acknowledge a candidate's outcome as soon as it is on the disk. Does not wait for that."""
        self._unsynced.append(SettledOutcome(index, latency_ms, best, worker))
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
        """Sync, then acknowledge the outcomes that were recorded before."""
        async with self._acknowledging:
            count = len(self._unsynced)
            await self.recorder.sync()
            self._tell(count)

    def _tell(self, count: int) -> None:
        for _ in range(count):
            outcome = self._unsynced.popleft()
            self.untold.append(outcome)
            self._wake()
            index, latency_ms = outcome.best or (None, 0.0)
            found = None if index is None else self.recorder.state.outcome(index)
            # The measurement of a device that was excluded since then does not count.
            if isinstance(found, CandidateMeasured) and found.timing.latency_ms == latency_ms:
                self.recorder.emit(BestChanged, worker=outcome.worker, index=index, latency_ms=latency_ms)


async def keep_time(run: Run, seconds: float | None) -> None:
    """Stop `run` once it took so many seconds, in all its parts together. Returns once all is measured."""
    if seconds is None:
        return
    with anyio.move_on_after(max(0.0, seconds - run.recorder.elapsed_s)) as left:
        await run.measured.wait()
    if left.cancelled_caught:
        run.stop("budget")
