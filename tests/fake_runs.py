"""Runs of the engine with fakes, for tests of what happens in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atune import TuneResult, tune
from atune.journal.events import CandidateMeasured, Event
from atune.testing import FakeBackend


def valley(low: int) -> Callable[[dict[str, Any]], float]:
    """Return a latency function with its minimum at candidate `low`."""
    return lambda config: 1.0 + abs(config["x"] - low)


class Run:
    """One finished run: its result and its events."""

    def __init__(self, result: TuneResult, events: list[Event]) -> None:
        self.result, self.events = result, events

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kinds)]

    def measured(self) -> list[int]:
        return sorted(e.index for e in self.of(CandidateMeasured))


async def finish(backend: FakeBackend, **options: Any) -> Run:
    events: list[Event] = []
    result = await tune(backend=backend, on_event=events.append, **options)
    assert (backend.opened, backend.closed, backend.running) == (1, 1, 0)
    assert [e.seq for e in events] == list(range(len(events)))
    settled = result.measured + result.failed + result.pruned + result.duplicates + result.remaining
    assert settled == result.total == len(backend.configs)
    return Run(result, events)
