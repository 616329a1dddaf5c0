"""State that the stages of a run share: the recorder, and the signals that wake waiting stages."""

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
from atune.model.device import DeviceLimits, Figures
from atune.reporting.log import Log, event_log
from atune.workload.workload import WorkloadSpec

Opened = TypeVar("Opened")


def _close(opened: Any) -> None:
    if opened is not None and opened[0] is not None:
        opened[0].close()


async def opened_aside(start: Callable[[], Opened], close: Callable[[Opened], object] = _close) -> Opened:
    """Call `start` in a thread, and return the journal or other resource that `start` opens.

    If the caller is cancelled, the thread still finishes, and then `close` closes the resource and frees its lock.
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
    """Calls the caller's `functions` with each event. If a function raises an error, the `with` block of `ending` is
    cancelled and raises the error, which ends the run."""

    def __init__(self, on_event: Listener | None, log: Log | None) -> None:
        self.functions = [event_log(log)]
        if on_event is not None:
            self.functions.insert(0, lambda event, *_: on_event(event))
        self.asked = on_event is not None or bool(log)
        """Whether the caller passed a listener or a logger."""
        self.of: tuple[Any, str] = None, ""
        """The state of the run that emits the next event, and the name of the run's journal."""
        self.raised: BaseException | None = None

    def __call__(self, event: Event) -> None:
        for function in list(self.functions):
            try:
                function(event, *self.of)
            except BaseException as raised:
                self.functions.remove(function)
                error, why = raised, f"an event listener raised {name_and_message(raised)}".removesuffix(": ")
                if isinstance(raised, (anyio.get_cancelled_exc_class(), GeneratorExit, StopIteration)):
                    error = UsageError(why)  # coroutines would take the original error for a signal of their own
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
"""Number of past events to fold, or of outcomes to pass to a strategy, until the event loop gets a turn (2 ms)."""


class Recorder:
    """Records events, and passes them to listeners. Emitting is synchronous, so that events have one order."""

    def __init__(self, journal: Journal | None = None, listeners: tuple[Listener, ...] = ()) -> None:
        self.state = State()
        self.journal = journal
        self.listeners = list(listeners)
        self._seq = 0
        self.emitted = 0
        """Number of events that this part of the run emitted."""
        self._before_s = 0.0
        self._started = time.monotonic()

    async def go_on(self, past: Iterable[Event]) -> None:
        """Fold the events of the run's earlier parts, in slices that do not block the event loop.

        Listeners get the past events before any new event, and the run's clock continues from the last event.
        """
        for count, event in enumerate(past, 1):
            self._hand_on(event)
            if count % EVENTS_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        self._seq = self.state.last_seq + 1
        self._before_s = max(self.state.wall_s, self.state.last_mono) if self._seq else 0.0
        self._started = time.monotonic()

    async def take_over(self, events: Sequence[Event]) -> None:
        """Record the events of another run, whose result becomes the result of this run."""
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
        """Seconds of the run, including its earlier parts."""
        return self._before_s + self.part_s

    def emit(self, kind: type[Event], /, *, worker: str = "engine", **fields: Any) -> None:
        """Record an event. If the journal cannot be written, raises `MachineError` to end the run."""
        event = kind(seq=self._seq, time=round(time.time(), 6), mono=round(self.elapsed_s, 6), worker=worker, **fields)
        if self.journal is not None:
            self.journal.append(event)
        self._seq += 1
        self.emitted += 1
        self._hand_on(event)

    async def sync(self) -> None:
        """Wait until everything that was recorded so far is on the disk."""
        if self.journal is not None:
            await self.journal.sync()

    def _hand_on(self, event: Event) -> None:
        self.state.apply(event)
        for listener in list(self.listeners):
            listener(event)


class Run:
    """State that a run's compile workers, device workers and final share. `recorder`: None without a journal."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.outcomes = Outcomes(self.recorder, self.wake)
        self.artifacts: dict[int, Artifact] = {}
        """Libraries of the measured candidates. The final times some of these libraries again."""
        self.lowered: Lowered | None = None
        """The first lowered candidate, for whose parameters devices make inputs; None until a candidate is lowered."""
        self.default: Lowered | None = None
        """The lowered default, or None. Devices use the default if the inputs misfit the first lowered candidate."""
        self.roles = Roles()
        """Parameter roles in the default or, if the default does not elaborate, in the first candidate that does."""
        self.found_roles = anyio.Event()
        self.limits = DeviceLimits()
        """Hard limits of every device."""
        self.figures: Figures | None = None
        """The figures from which the prior estimates latencies; None if the prior does not know the devices."""
        self.spec: WorkloadSpec
        self.stopping = ""
        """The reason why the run is stopping and starts nothing more; empty if the run is not stopping."""
        self.measuring = 0
        """Number of devices that have a candidate now."""
        self.compiled = anyio.Event()
        """Set when nothing is left to compile."""
        self.measured = anyio.Event()
        """Set when nothing is left to measure."""
        self._changed = anyio.Event()

    def stop(self, reason: str) -> None:
        """Start nothing more, but let jobs under way end. If `stop` is called again, the first reason is kept."""
        self.stopping = self.stopping or reason
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    def built(self, worker: str, artifacts: Sequence[Artifact], reason: str) -> None:
        """Record a library that was built or taken from the store, with all its `artifacts`."""
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
    """Waits until outcomes are on the disk, queues them for the strategy, and announces each new best candidate."""

    def __init__(self, recorder: Recorder, wake: Callable[[], None]) -> None:
        self.recorder, self._wake = recorder, wake
        self.untold: deque[SettledOutcome] = deque()
        """Outcomes on the disk that the strategy must learn before the engine asks the strategy again."""
        self._unsynced: deque[SettledOutcome] = deque()
        self._to_sync = anyio.Event()
        self._acknowledging = anyio.Lock()

    def settled(
        self, index: int, latency_ms: float | None = None, best: tuple[int, float] | None = None, worker: str = "engine"
    ) -> None:
        """Queue a candidate's outcome, which is acknowledged as soon as it is on the disk. Returns without waiting."""
        self._unsynced.append(SettledOutcome(index, latency_ms, best, worker))
        if self.recorder.journal is None:
            self._tell(1)
        else:
            self._to_sync.set()

    def sync_soon(self) -> None:
        self._to_sync.set()

    async def keep_synced(self) -> None:
        """Sync the journal after new outcomes. Outcomes that are recorded during a sync wait for the next sync."""
        while True:
            await self._to_sync.wait()
            self._to_sync = anyio.Event()
            await self.acknowledge()

    async def acknowledge(self) -> None:
        """Sync the journal, then acknowledge the outcomes that were recorded before the sync."""
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
            measured = None if index is None else self.recorder.state.outcome(index)
            # A measurement does not count if its device was excluded since then.
            if isinstance(measured, CandidateMeasured) and measured.timing.latency_ms == latency_ms:
                self.recorder.emit(BestChanged, worker=outcome.worker, index=index, latency_ms=latency_ms)


async def keep_time(run: Run, seconds: float | None) -> None:
    """Stop `run` when all its parts together have taken `seconds`. Returns when everything is measured."""
    if seconds is None:
        return
    with anyio.move_on_after(max(0.0, seconds - run.recorder.elapsed_s)) as left:
        await run.measured.wait()
    if left.cancelled_caught:
        run.stop("budget")
