"""Warnings about other users of a GPU that a run measures on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from atune.errors import WorkerError
from atune.local.entry_points import NEIGHBOURS
from atune.model.device import DeviceInfo
from atune.model.measurement import DISTURBS
from atune.processes.messages import Around, Neighbours
from atune.processes.worker import Worker

LOOK_S = 5.0
"""Least seconds between two checks."""
MOST_NEIGHBOURS = 8
"""Most processes of others that a run reports per device."""

BUSY_PERCENT = 20
"""Utilisation of an idle GPU, in percent, above which somebody else computes on it."""
REMEDY = "end it, or measure on another device"


class Lookout:
    """Looks for other users of one device: its process asks NVML. Warns once about each process of others."""

    def __init__(self, info: DeviceInfo, warn: Callable[[str], None]) -> None:
        self.info, self.warn = info, warn
        self._looked = float("-inf")
        self._told: set[int] = set()

    async def look(self, worker: Worker | None, limit_s: float, *, at_once: bool = False, idle: bool = False) -> None:
        """Check for other users, unless the last check was less than `LOOK_S` ago. `at_once`: check in any case.

        `idle`: the run computes nothing now.

        The process may die of the question or run past `limit_s`; its next call then reports this.
        """
        now = time.monotonic()
        if not self.info.uuid or worker is None or not worker.alive or (now - self._looked < LOOK_S and not at_once):
            return
        self._looked = now
        question = msgspec.msgpack.encode(Neighbours(program=os.getpid(), uuid=self.info.uuid, idle=idle))
        with suppress(WorkerError):
            seen = msgspec.msgpack.decode(await worker.call(NEIGHBOURS, question, limit_s), type=Around)
            if (seen.busy_percent or 0) > BUSY_PERCENT:
                self.warn(
                    f"device {self.info.id} was {seen.busy_percent} % busy before anything was measured on it: "
                    f"another program computes there and {DISTURBS}; {REMEDY}"
                )
            new = [one for one in seen.neighbours if one.pid not in self._told][: MOST_NEIGHBOURS - len(self._told)]
            self._told |= {one.pid for one in new}
            if new:
                others = ", ".join(map(str, new))
                self.warn(f"device {self.info.id} is also used by {others}: that {DISTURBS}; {REMEDY}")
