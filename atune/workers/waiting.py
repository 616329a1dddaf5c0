"""Background tasks, and deadlines that count only the time during which this program runs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

TICK_S = 0.5


class Deadline:
    """A time limit, in seconds, on waiting for something that may hang.

    The deadline waits in ticks, and a tick counts for no more than its planned time. So if this program is stopped
    (SIGSTOP, Ctrl-Z, a suspended machine), at most one tick of the stopped time counts.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    async def wait(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Wait for `ready`, for at most one tick. If nothing is ready then, the caller calls `wait` again. Raises
        `TimeoutError` if no time was left before the call, so the caller checks one last time before the caller gets
        the error."""
        if self._left_s <= 0:
            raise TimeoutError
        planned, began = min(TICK_S, self._left_s), time.monotonic()
        with anyio.move_on_after(planned):
            await ready()
        self._left_s -= min(planned, time.monotonic() - began)


@asynccontextmanager
async def background(*, cancel: bool = True) -> AsyncGenerator[TaskGroup, None]:
    """Yield a task group for background tasks. Exceptions of the body are raised unchanged, not as a group.

    When the body ends, the tasks are cancelled; without `cancel`, the exit waits for the tasks instead. If a task
    fails, the body is cancelled, and the task group's own exceptions are raised.
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
        others = group.split(lambda part: part is error or isinstance(part, cancelled))[1]
        if error is None or (others is not None and isinstance(error, cancelled)):
            raise
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
