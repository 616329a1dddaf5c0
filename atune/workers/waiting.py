"""Waiting: deadlines that count only the time in which this program runs, background tasks, and locks on devices."""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from atune.model.folders import private_root

TICK_S = 0.5


class Deadline:
    """Seconds to wait for something that may hang.

    Waiting happens in ticks, of which only the planned time counts. So time in which this program does not run
    (SIGSTOP, Ctrl-Z, a suspended machine) does not count, but for one tick.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    async def wait(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Wait for `ready`, for one tick at most. The caller checks whether it came, and else calls again.

        Raises `TimeoutError` if no time is left. The caller always checks once more before that error.
        """
        if self._left_s <= 0:
            raise TimeoutError
        planned, began = min(TICK_S, self._left_s), time.monotonic()
        with anyio.move_on_after(planned):
            await ready()
        self._left_s -= min(planned, time.monotonic() - began)


@asynccontextmanager
async def background(*, cancel: bool = True) -> AsyncGenerator[TaskGroup, None]:
    """Yield a task group for background tasks. The body's exceptions come out as they were raised.

    Its tasks are cancelled when the body ends; without `cancel` the exit waits for them. If a task failed and the body
    was cancelled for it, the group's own exceptions come out.
    """
    error: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as raised:
                error = raised
                raise
            finally:
                if cancel:
                    tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        cancelled = anyio.get_cancelled_exc_class()
        others = group.split(lambda one: one is error or isinstance(one, cancelled))[1]
        if error is None or (others is not None and isinstance(error, cancelled)):
            raise
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


LOCK_PATIENCE_S = 180.0
"""Most seconds of waiting for a lock. The program that holds it may be stopped."""
LOCK_POLL_S = (0.0005, 0.005)
"""Seconds between the first two tries, and between the last two."""


@asynccontextmanager
async def device_lock(
    device: str, folder: Path | None = None, patience_s: float = LOCK_PATIENCE_S
) -> AsyncGenerator[float | None, None]:
    """Hold a device, by its UUID or name. Yields the seconds of waiting, or None if the wait was given up.

    It is two advisory locks (flock) on files of `folder`, or below `$TMPDIR/atune-UID`. The holder of the first one may
    wait for the second, so that a run that measures without pause cannot overtake a waiting run. The kernel releases a
    lock when its program ends in any way. Cancelling the wait leaves nothing behind.
    """
    folder = folder or private_root()
    deadline, began = Deadline(patience_s), time.monotonic()
    with ExitStack() as turn, ExitStack() as lock:
        got = await _locked(folder / f"device-{device}.turn", turn, deadline)
        got = got and await _locked(folder / f"device-{device}.lock", lock, deadline)
        turn.close()
        yield time.monotonic() - began if got else None


async def _locked(path: Path, stack: ExitStack, deadline: Deadline) -> bool:
    """Lock `path` until `stack` is closed. Returns False if that took too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    stack.callback(os.close, fd)
    pause = LOCK_POLL_S[0]
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                await deadline.wait(functools.partial(anyio.sleep, pause))
            except TimeoutError:
                return False
            pause = min(2 * pause, LOCK_POLL_S[1])
        else:
            stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)  # also where a forked child has the descriptor, too
            return True
