"""Background tasks that stay invisible: their group never wraps an exception of the body."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


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
        if error is None or _broken(group, error):
            raise
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


def _broken(group: BaseExceptionGroup[BaseException], error: BaseException) -> bool:
    """Tell whether a background task failed, so that the body's `error` is only the cancellation that followed."""
    cancelled = anyio.get_cancelled_exc_class()
    others: list[BaseException] = []
    queue: list[BaseException] = [*group.exceptions]
    while queue:
        one = queue.pop()
        if isinstance(one, BaseExceptionGroup):
            queue += one.exceptions
        elif one is not error and not isinstance(one, cancelled):
            others.append(one)
    return bool(others) and isinstance(error, cancelled)
