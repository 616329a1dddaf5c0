"""Await in a new event loop, from a program that has none, or is in another one."""

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
    """Return the one error that matters in a task group's exception group, or the group if there are several.

    The caller's mistake comes first, then atune's other errors.
    """
    found: list[BaseException] = []
    queue: list[BaseException] = [group]
    while queue:
        error = queue.pop()
        if isinstance(error, BaseExceptionGroup):
            queue += error.exceptions
        else:
            found.append(error)
    ours = sorted((e for e in found if isinstance(e, AtuneError)), key=lambda e: not isinstance(e, UsageError))
    # On trio each task may raise a cancellation; next to an error, it is only the error's consequence.
    cancelled = [asyncio.CancelledError] + ([sys.modules["trio"].Cancelled] if "trio" in sys.modules else [])
    others = [e for e in found if not isinstance(e, tuple(cancelled))] or found[:1]
    return ours[0] if ours else others[0] if len(others) == 1 else group


def of_the_machine(error: OSError) -> Exception:
    """Return the exception to raise for `error`. If the machine is short of something, it says what to do."""
    raised: AtuneError
    if error.errno == errno.ENFILE:
        raised = UsageError("the machine has too many files open: end the programs that hold them, or try again later")
    elif error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raised = UsageError(
            f"this process may have {most} files open, and needs more: raise that (ulimit -n 1024), or use fewer "
            "workers (--workers, CompileSettings(workers=…))"
        )
    elif (short_of := shortage_of(error)) is not None:
        raised = machine_error(short_of, tempfile.gettempdir())
    else:
        return error
    raised.__cause__ = error
    return raised


def no_winner_message(result: Result) -> str:
    """Return the message that no candidate worked, with counted reasons. The most frequent failure comes first."""
    # rare, and not needed to import atune
    from atune.reporting.summary import PRUNED, failure_groups, first_failure_lines, group_lines, outcomes, why_none

    if not result.total or result.remaining == result.total:
        ended = {"stopped": "stop() was called", "exhausted": "the strategy ended"}
        return f"no candidate was tried: {ended.get(result.reason, 'the budget ended')} before the first one"
    groups = sorted(failure_groups(result.records), key=lambda group: group.kind == PRUNED)
    lines = [f"  {line}" for line in group_lines(groups, 10, first_failure_lines(result, groups))]
    return "\n".join(filter(None, [result.about_default, f"{why_none(result)}: {outcomes(result)}", *lines]))


def winning(result: Result) -> TuneResult:
    """Return `result`, which has a winner. Raises `NoWinner` where it has none."""
    if isinstance(result, TuneResult):
        return result
    raise NoWinner(no_winner_message(result), result)


T = TypeVar("T")


def importing() -> bool:
    """Tell whether this thread is in an import, for which another thread may wait, and this one for that."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def in_time(work: Callable[[], T]) -> T:
    """Run `work`, which calls functions of a space, in another thread, and return its answer.

    Raises `SpaceError` where one of them hangs: a thread that runs Python's code is ended, another is left behind.
    During an import there is no other thread, and no deadline.
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
    """Await `function` in a new event loop in a thread, like `run`, and return its result."""
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
                concurrent.futures.wait([future], timeout=0.1)  # with a timeout, so that signal handlers can run
        except BaseException as error:
            future.cancel()
            ended.wait(5)
            if isinstance(error, KeyboardInterrupt) and notes:
                raise KeyboardInterrupt(notes[0]) from None  # of that very class: Python then ends by SIGINT
            raise
    for why in raised:  # only here: an exit would end the loop alone
        raise why
    return answers[0]
