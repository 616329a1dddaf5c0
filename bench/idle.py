"""A clock for runs over fakes whose own cost counts."""

from __future__ import annotations

import math

import anyio
import anyio.lowlevel

from atune.testing import FakeClock


class InstantClock(FakeClock):
    """Virtual time in which every finite sleep ends at once, even if others sleep. For measuring the engine's own cost.

    An infinite sleep does not end.
    """

    async def sleep(self, seconds: float) -> None:
        if math.isinf(seconds):
            await anyio.sleep_forever()
        self.now += seconds
        await anyio.lowlevel.checkpoint()
