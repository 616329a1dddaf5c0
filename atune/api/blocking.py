"""Await in a new event loop, from a program that has none, or is in another one."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.from_thread

from atune.api.run_errors import unwrapped
from atune.system.folders import cache_folder_at, chosen_cache_folder

T = TypeVar("T")


def run_blocking(function: Callable[..., Awaitable[T]], /, *arguments: Any, **options: Any) -> T:
    """Await `function` in a new event loop in a thread, like `run`, and return its result."""
    outcome: list[T] = []
    errors: list[BaseException] = []
    notes: list[str] = []
    scope: list[tuple[anyio.CancelScope, anyio.from_thread.BlockingPortal]] = []
    ready, ended = threading.Event(), threading.Event()
    folder = chosen_cache_folder()

    async def work() -> None:
        async with anyio.from_thread.BlockingPortal() as portal:
            with anyio.CancelScope() as cancel:
                scope.append((cancel, portal))
                ready.set()
                try:
                    outcome.append(await function(*arguments, **options))
                except BaseException as error:
                    notes.extend(getattr(error, "__notes__", ()))
                    raise

    def thread() -> None:
        try:
            with cache_folder_at(folder):
                anyio.run(work)
        except BaseException as error:
            errors.append(unwrapped(error) if isinstance(error, BaseExceptionGroup) else error)
        finally:
            ready.set()
            ended.set()

    runner = threading.Thread(target=thread, name="atune-run", daemon=True)
    runner.start()
    try:
        # Not join(): before Python 3.13, a join that KeyboardInterrupt ends marks the thread as ended.
        while not ended.wait(0.1):  # with a timeout, so that signal handlers can run
            pass
    except BaseException as error:
        ready.wait()
        if scope:
            cancel, portal = scope[0]
            with suppress(RuntimeError):
                portal.start_task_soon(cancel.cancel)
        ended.wait(5)
        if isinstance(error, KeyboardInterrupt) and notes:
            raise KeyboardInterrupt(notes[0]) from None  # of that very class: Python then ends by SIGINT
        raise
    runner.join()
    if errors:
        raise errors[0]
    return outcome[0]
