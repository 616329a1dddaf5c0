"""The events of a run for its readers: each reads from the first one at its own speed, and blocks nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel

from atune.errors import UsageError
from atune.journal.events import Event


class EventHistory:
    """All events of a run so far. Readers wait for more until `end`, which comes once the run has ended."""

    def __init__(self) -> None:
        self.past: list[Event] = []
        self.kept = True
        """False keeps nothing, for a run whose events nobody can read: there may be hundreds of thousands."""
        self.ended = False
        self.more: anyio.Event | None = None
        """Set with the next event, and at the end; None until the run has started."""

    def start(self) -> None:
        """Begin, in the run's event loop."""
        self.more = anyio.Event()

    def publish(self, event: Event) -> None:
        """Add an event, as a listener of the recorder."""
        if self.kept:
            self.past.append(event)
            self._wake()
            self.start()

    def end(self) -> None:
        """Let readers end after the last event."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if self.more is not None:
            self.more.set()


class EventReader(AsyncIterator[Event]):
    """One reader's place in a run's events. An async generator would need closing when its reader leaves."""

    def __init__(self, history: EventHistory) -> None:
        self._history, self._position = history, 0

    async def __anext__(self) -> Event:
        await anyio.lowlevel.checkpoint()
        history = self._history
        while self._position == len(history.past):
            if history.more is None:
                raise UsageError(not_entered("events"))
            if history.ended:
                raise StopAsyncIteration
            await history.more.wait()
        self._position += 1
        return history.past[self._position - 1]


def not_entered(method: str) -> str:
    """Return the message that `method` needs a tuner that was entered."""
    return f"Tuner.{method}(): the run starts on entering: `async with Tuner(...) as tuner:`"
