"""One device, one measurement at a time: runs of one user, in one program or in several, take turns.

Two advisory locks (flock) a device, on files below `$TMPDIR/atune-UID`: who holds the first may wait for the second,
so that a run which measures without a pause cannot get the device back before another that waits. The kernel releases
a lock when its program ends, however it ends.
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
"""Seconds after which a lock is no longer waited for: its program may have been stopped."""
POLL_S = (0.0005, 0.005)
"""Seconds between two tries, at first and at last."""


class DeviceLock:
    """The lock of one device, by its UUID or name. `folder` holds its files."""

    def __init__(self, device: str, folder: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        self.device, self.patience_s = device, patience_s
        self._folder = folder

    @asynccontextmanager
    async def held(self, patience_s: float | None = None) -> AsyncGenerator[float | None, None]:
        """Hold the device; yields the seconds that it was waited for, or None where the wait was given up.

        `patience_s` replaces the lock's own. Each entering is a holder of its own, in one task or in many. Cancelling
        the wait leaves nothing behind.
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
    """Lock `path` until `stack` is closed; False where that took too long."""
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
