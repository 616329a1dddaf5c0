"""Await coroutines in a new event loop, for programs without an event loop, and for code that an event loop runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import ctypes
import errno
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, TypeVar

import anyio.from_thread

from atune.errors import AtuneError, NoWinner, UsageError, asking
from atune.journal.result import Result, TuneResult
from atune.model.folders import cache_folder_at, chosen_folder
from atune.model.space import NoAnswer
from atune.workers.resources import shortage_of
from atune.workers.workers import ANSWER_TIMEOUT_S, NO_ANSWER, machine_error


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report for an exception group. If several errors matter equally, return the group.

    A `UsageError` matters most, and then atune's other errors.
    """
    errors: list[BaseException] = []
    queue: list[BaseException] = [group]
    while queue:
        error = queue.pop()
        if isinstance(error, BaseExceptionGroup):
            queue += error.exceptions
        else:
            errors.append(error)
    ours = sorted((e for e in errors if isinstance(e, AtuneError)), key=lambda e: not isinstance(e, UsageError))
    # On trio each task may raise a cancellation. If there is an error too, it caused the cancellation.
    cancelled = [asyncio.CancelledError] + ([sys.modules["trio"].Cancelled] if "trio" in sys.modules else [])
    others = [e for e in errors if not isinstance(e, tuple(cancelled))] or errors[:1]
    return ours[0] if ours else others[0] if len(others) == 1 else group


def of_the_machine(error: OSError) -> Exception:
    """Return the exception to raise for `error`. If a resource is exhausted, the message says what to do."""
    raised: AtuneError
    if error.errno == errno.ENFILE:
        raised = UsageError("the machine has too many files open: end the programs that hold them, or try again later")
    elif error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raised = UsageError(
            f"this process may open {most} files and needs more: raise the limit (ulimit -n 1024), or use fewer "
            "workers (--workers, CompileSettings(workers=…))"
        )
    elif (short_of := shortage_of(error)) is not None:
        raised = machine_error(short_of, tempfile.gettempdir())
    else:
        return error
    raised.__cause__ = error
    return raised


def no_winner_message(result: Result) -> str:
    """Return the message for a result without a winner: the failures, counted by kind, the most frequent first."""
    # imported here because it is rarely needed, and would slow `import atune` down
    from atune.reporting.summary import PRUNED, failure_groups, first_failure_lines, group_lines, outcomes, why_none

    if not result.total or result.remaining == result.total:
        ended = {"stopped": "stop() was called", "exhausted": "the strategy ended"}
        return f"no candidate was tried: {ended.get(result.reason, 'the budget ended')} before the first one"
    groups = sorted(failure_groups(result.records), key=lambda group: group.kind == PRUNED)
    lines = [f"  {line}" for line in group_lines(groups, 10, first_failure_lines(result, groups))]
    return "\n".join(filter(None, [result.about_default, f"{why_none(result)}: {outcomes(result)}", *lines]))


def winning(result: Result) -> TuneResult:
    """Return `result` if it has a winner. Raises `NoWinner` otherwise."""
    if isinstance(result, TuneResult):
        return result
    raise NoWinner(no_winner_message(result), result)


T = TypeVar("T")


def importing() -> bool:
    """Tell whether this thread is importing a module. Waiting for another importing thread could then deadlock."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def in_time(work: Callable[[], T]) -> T:
    """Run `work`, which calls functions of a space, in another thread, and return the result of `work`.

    Raises `SpaceError` if a function hangs. The hanging thread is then ended if it runs Python code, and left behind if
    it runs native code. During an import, `work` runs in this thread and without a deadline.
    """
    if importing():
        return work()
    future, context = concurrent.futures.Future[T](), contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True, name="atune-ask")
    thread.start()
    while not concurrent.futures.wait([future], timeout=min(1, ANSWER_TIMEOUT_S / 4)).done:
        me, now = thread.ident or 0, time.monotonic()
        if (waits := asking.get(me)) is not None and now - waits[0] > ANSWER_TIMEOUT_S:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(SystemExit))
            raise waits[1](NoAnswer(NO_ANSWER.format(ANSWER_TIMEOUT_S)))
    return future.result()


def run_blocking(function: Callable[..., Awaitable[T]], /, *arguments: Any, **options: Any) -> T:
    """Call and await `function` in a new event loop, in another thread, and return the result."""
    notes, answers, raised = list[str](), list[T](), list[BaseException]()
    ended = threading.Event()
    folder = chosen_folder.get()

    async def work() -> None:
        try:
            with cache_folder_at(folder):
                answers.append(await function(*arguments, **options))
        except BaseException as error:
            notes.extend(getattr(error, "__notes__", ()))
            raised.append(unwrapped(error) if isinstance(error, BaseExceptionGroup) else error)
        finally:
            ended.set()

    with anyio.from_thread.start_blocking_portal(name="atune-run") as portal:
        future = portal.start_task_soon(work)
        try:
            while not future.done():
                concurrent.futures.wait([future], timeout=0.1)  # signal handlers run only between waits
        except BaseException as error:
            future.cancel()
            ended.wait(5)
            if isinstance(error, KeyboardInterrupt) and notes:
                raise KeyboardInterrupt(notes[0]) from None  # not a subclass, so that Python exits by SIGINT
            raise
    for failure in raised:  # raised here, because a SystemExit in the loop's thread would end only the loop
        raise failure
    return answers[0]
