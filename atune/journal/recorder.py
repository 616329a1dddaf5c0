"""Records every event: in the journal, in the fold, and with the listeners."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio.lowlevel

from atune.errors import name_and_message
from atune.journal.events import Event, Warned
from atune.journal.state import State
from atune.journal.writer import Journal

Listener = Callable[[Event], None]
AT_ONCE = 100
"""Events of earlier parts that are folded before the event loop has its turn: they take about 2 ms."""


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
        dropped: list[Exception] = []
        for count, event in enumerate(past, 1):
            self.state.apply(event)
            self._hand_on(event, dropped)
            if count % AT_ONCE == 0:
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
        """Record one event. Raises `JournalError` where the journal cannot be written: the run cannot go on then."""
        event = kind(seq=self._seq, time=round(time.time(), 6), mono=round(self.elapsed_s, 6), worker=worker, **fields)
        if self.journal is not None:
            self.journal.append(event)
        self._seq += 1
        self.emitted += 1
        self.state.apply(event)
        dropped: list[Exception] = []
        self._hand_on(event, dropped)
        for why in dropped:  # only now: the listeners after it get their events in order too
            self.emit(Warned, message=f"a listener of events raised and was dropped: {name_and_message(why)}")

    async def sync(self) -> None:
        """Return once everything recorded so far is on the disk."""
        if self.journal is not None:
            await self.journal.sync()

    def _hand_on(self, event: Event, dropped: list[Exception]) -> None:
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception as error:  # a listener's bug costs the listener, not the run
                self.listeners.remove(listener)
                dropped.append(error)
