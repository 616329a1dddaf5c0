"""Locks for one measurement at a time on each device, among all runs of one user.

Each device has two advisory locks (flock) on files below `$TMPDIR/atune-UID`. The holder of the first lock may wait
for the second. A run that measures without pause therefore cannot overtake a waiting run. The kernel releases a lock
when its program ends in any way.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio

from atune.system.deadline import Deadline
from atune.system.folders import private_root

PATIENCE_S = 180.0
"""Most seconds of waiting for a lock. The program that holds it may be stopped."""
POLL_S = (0.0005, 0.005)
"""Seconds between the first two tries, and between the last two."""


class DeviceLock:
    """The lock of one device, by its UUID or name. `folder` holds its files."""

    def __init__(self, device: str, folder: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        self.device, self.patience_s = device, patience_s
        self._folder = folder

    @asynccontextmanager
    async def held(self, patience_s: float | None = None) -> AsyncGenerator[float | None, None]:
        """Hold the device. Yields the seconds of waiting, or None if the wait was given up.

        `patience_s` replaces the lock's own. Each entering holds the lock separately, in one task or in many.
        Cancelling the wait leaves nothing behind.
        """
        folder = self._folder or private_root()
        patience_s = self.patience_s if patience_s is None else patience_s
        deadline, began = Deadline(patience_s), time.monotonic()
        with ExitStack() as turn, ExitStack() as lock:
            got = await _locked(folder / f"device-{self.device}.turn", turn, deadline)
            got = got and await _locked(folder / f"device-{self.device}.lock", lock, deadline)
            turn.close()
            yield time.monotonic() - began if got else None


async def _locked(path: Path, stack: ExitStack, deadline: Deadline) -> bool:
    """Lock `path` until `stack` is closed. Returns False if that took too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    stack.callback(os.close, fd)
    pause = POLL_S[0]
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                await deadline.wait(functools.partial(anyio.sleep, pause))
            except TimeoutError:
                return False
            pause = min(2 * pause, POLL_S[1])
        else:
            stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)  # also where a forked child has the descriptor, too
            return True
