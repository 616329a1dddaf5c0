"""How long devices were busy with candidates, folded from events."""

from __future__ import annotations

from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    CandidateMeasured,
    DeviceLost,
    Event,
    RunFinished,
    RunInterrupted,
    RunResumed,
)


class DeviceTime:
    """Sums up, over devices, what candidates took there: loading, checking and timing. The final does not count.

    A measured candidate counts the seconds that its device reports. Any other counts from its start to its end, or to
    the last event if the whole program died.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: dict[str, float] = {}
        """When each busy device began with its candidate."""
        self._last = 0.0

    def apply(self, event: Event) -> None:
        """Take one event in, in the order of `seq`."""
        match event:
            case BenchmarkStarted():
                self._since[event.device] = event.mono
            case CandidateMeasured() if event.seconds > 0:
                self._since.pop(event.device, None)
                self.seconds += event.seconds
            case CandidateMeasured() | BenchmarkFailed() | BenchmarkRepeated() | DeviceLost():
                self._end(event.device, event.mono)
            case RunFinished() | RunInterrupted():
                self._end_all(event.mono)
            case RunResumed():
                self._end_all(self._last)
            case _:
                pass
        self._last = event.mono

    def _end(self, device: str, mono: float) -> None:
        since = self._since.pop(device, None)
        if since is not None:
            self.seconds += max(0.0, mono - since)

    def _end_all(self, mono: float) -> None:
        for device in tuple(self._since):
            self._end(device, mono)
