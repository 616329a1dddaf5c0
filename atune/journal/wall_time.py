"""How long a run took, folded from its events."""

from __future__ import annotations

from atune.journal.events import Event, RunFinished, RunInterrupted, RunResumed


class WallTime:
    """Sums up the seconds of a run's parts. A part without an end counts up to its last event."""

    def __init__(self) -> None:
        self._ended_s = 0.0
        """Of the parts that have ended."""
        self._part_s = 0.0
        self._part_started = 0.0

    @property
    def seconds(self) -> float:
        return self._ended_s + self._part_s

    def apply(self, event: Event) -> None:
        if isinstance(event, RunResumed):
            self._end_part(self._part_s)  # adds nothing if the previous part ended properly
            self._part_started = event.mono
            return
        self._part_s = max(self._part_s, event.mono - self._part_started)
        if isinstance(event, (RunFinished, RunInterrupted)):
            self._end_part(event.wall_s)

    def _end_part(self, wall_s: float) -> None:
        self._ended_s += wall_s
        self._part_s, self._part_started = 0.0, float("inf")
