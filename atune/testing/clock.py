"""Virtual time for the fakes."""

from __future__ import annotations

import heapq
import math

import anyio
import anyio.lowlevel

SETTLE = 24
"""Turns of the event loop without a new sleeper after which all tasks are assumed to wait for the clock."""


class FakeClock:
    """Virtual time, in seconds, that jumps to the next sleeper's end when all tasks wait.

    Sleepers wake one at a time, in the order of their ends, so that a script's order of events is always the same.
    `pace`: real seconds per virtual second; 0 for none. For one event loop at a time.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.now = 0.0
        self.pace = pace
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._started = 0
        self._activity = 0
        self._driven = False
        self._joined = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep `seconds` of virtual time, forever if infinite."""
        end, event = self.now + seconds, anyio.Event()
        self._started += 1
        self._activity += 1
        sleeper = (end, self._started, event)
        heapq.heappush(self._sleepers, sleeper)
        self._joined.set()
        try:
            while sleeper in self._sleepers:
                if self._driven:
                    await sleeper[2].wait()
                    if sleeper in self._sleepers:  # woken to drive the clock, before its end
                        sleeper = self._renewed(sleeper)
                else:
                    await self._drive(sleeper)
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)
            if not self._driven and self._sleepers:
                self._sleepers[0][2].set()  # the next sleeper drives the clock from now on
        await anyio.lowlevel.checkpoint()

    def _renewed(self, sleeper: tuple[float, int, anyio.Event]) -> tuple[float, int, anyio.Event]:
        fresh = (sleeper[0], sleeper[1], anyio.Event())
        self._sleepers[self._sleepers.index(sleeper)] = fresh
        return fresh

    async def _drive(self, own: tuple[float, int, anyio.Event]) -> None:
        """Move the clock until `own`'s end."""
        self._driven = True
        try:
            while own in self._sleepers:
                await self._settle()
                end, _, event = self._sleepers[0]
                if math.isinf(end):
                    self._joined = anyio.Event()
                    await self._joined.wait()
                    continue
                if self.pace and end > self.now:
                    step = min(end - self.now, 0.01 / self.pace)
                    await anyio.sleep(step * self.pace)
                    self.now += step
                    if self.now < end:
                        continue
                self.now = max(self.now, end)
                # A new sleeper may have joined; wake the earliest in any case.
                _, _, event = heapq.heappop(self._sleepers)
                self._activity += 1
                event.set()
        finally:
            self._driven = False

    async def _settle(self) -> None:
        quiet, seen = 0, self._activity
        while quiet < SETTLE:
            await anyio.lowlevel.checkpoint()
            quiet = quiet + 1 if self._activity == seen else 0
            seen = self._activity


class InstantClock(FakeClock):
    """Virtual time in which every finite sleep ends at once, even if others sleep. For measuring the engine's own cost.

    An infinite sleep does not end.
    """

    async def sleep(self, seconds: float) -> None:
        if math.isinf(seconds):
            await anyio.sleep_forever()
        self.now += seconds
        await anyio.lowlevel.checkpoint()
