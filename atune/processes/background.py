"""Tasks beside a body that nobody outside sees: their group never wraps what the body raised."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def background(*, cancel: bool = True) -> AsyncGenerator[TaskGroup, None]:
    """Yield a task group for what goes on beside the body; the body's exceptions come out as they were raised.

    Its tasks are cancelled when the body has ended; without `cancel` they are waited for. Where one of them failed and
    the body was cancelled for that, the group's own exceptions come out.
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
    """Tell whether a task beside the body failed, so that `error`, the body's, is only the cancellation after it."""
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
