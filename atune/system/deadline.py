"""Deadlines that count only the time in which this program runs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

TICK_S = 0.5


class Deadline:
    """Seconds to wait for something that may hang; None waits for ever.

    Time in which this program does not run (SIGSTOP, Ctrl-Z, a suspended machine) does not count. Waiting is done in
    ticks: one that ends more than a tick late was one of a program that was held up, and counts as long as it was
    planned. After the first such tick at least one more follows, for what was stopped along with this program.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left_s, self._extended = seconds, False

    async def wait(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Wait for `ready`, for a tick at most: the caller looks whether it came, and waits again if it did not.

        Raises TimeoutError where no time is left. Time runs out while waiting, so that the caller always looks once
        more before it is told.
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
