"""Deadlines that count only the time in which this program runs, and locks among the programs of a user.

Each device has two advisory locks (flock) on files below `$TMPDIR/atune-UID`. The holder of the first lock may wait
for the second. A run that measures without pause therefore cannot overtake a waiting run. The kernel releases a lock
when its program ends in any way.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio

from atune.model.folders import private_root

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
    async def held(self) -> AsyncGenerator[float | None, None]:
        """Hold the device. Yields the seconds of waiting, or None if the wait was given up.

        Each entering holds the lock separately, in one task or in many.
        Cancelling the wait leaves nothing behind.
        """
        folder = self._folder or private_root()
        deadline, began = Deadline(self.patience_s), time.monotonic()
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
