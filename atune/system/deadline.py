"""Deadlines that count only the time in which this program runs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

TICK_S = 0.5


class Deadline:
    """Seconds to wait for something that may hang. None waits forever.

    Time in which this program does not run (SIGSTOP, Ctrl-Z, a suspended machine) does not count. Waiting happens in
    ticks. If a tick ends more than a tick late, the program was stopped, and only the planned time counts. At least
    one more tick follows the first late one, for processes that were stopped together with this program.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left_s, self._extended = seconds, False

    async def wait(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Wait for `ready`, for one tick at most. The caller checks whether it came, and else calls again.

        Raises `TimeoutError` if no time is left. The caller always checks once more before that error.
        """
        if self._left_s is None:
            await ready()
            return
        if self._left_s <= 0:
            raise TimeoutError
        planned, began = min(TICK_S, self._left_s), time.monotonic()
        with anyio.move_on_after(planned):
            await ready()
        self._count(planned, time.monotonic() - began)

    def _count(self, planned: float, took: float) -> None:
        assert self._left_s is not None
        held_up = took > planned + TICK_S
        self._left_s -= planned if held_up else took
        if held_up and not self._extended:
            self._left_s, self._extended = max(self._left_s, TICK_S), True
