"""A clock for runs with fakes that measure the cost of the engine itself."""

from __future__ import annotations

import math

import anyio
import anyio.lowlevel

from atune.testing import FakeClock


class InstantClock(FakeClock):
    """Virtual time in which every finite sleep ends immediately, even while others sleep.

    An infinite sleep never ends.
    """

    async def sleep(self, seconds: float) -> None:
        if math.isinf(seconds):
            await anyio.sleep_forever()
        self.now += seconds
        await anyio.lowlevel.checkpoint()
