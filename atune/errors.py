"""The exceptions that atune raises to its callers.

A candidate's failure is never raised: it is recorded as a `Failure`. `UsageError` and its subclasses mean that the
caller made a mistake and has to fix the call; nothing was lost. `WorkerError` and `MachineError` mean that a worker or
the machine broke down.
"""

from __future__ import annotations

import copyreg
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from types import FrameType

    from atune.journal.result import Record, Result

__all__ = [
    "AtuneError",
    "CacheMiss",
    "CompileFailed",
    "DevicesLost",
    "InputsMissing",
    "JournalError",
    "MachineError",
    "NoWinner",
    "SpaceError",
    "StrategyError",
    "TargetError",
    "UnknownOption",
    "UsageError",
    "WorkerError",
    "WorkloadError",
]
"""The exceptions that reach a caller. The other names in this module are internal to atune."""


def __dir__() -> list[str]:
    return __all__


MESSAGE_CHARACTERS = 500
"""Largest number of characters that atune keeps of the message of a candidate's exception."""
DETAIL_CHARACTERS = 4000
"""Largest number of characters that atune keeps of a candidate's traceback or output."""
_CHECK = re.compile(r"Check failed: .*?(?: is false:|\(.*? vs\. .*?\) ?:) *(?=\S+ )")
"""The start of TVM's message about a failed check. If a sentence follows, which explains the failure, atune removes the
start. If only a word follows, which is a value, atune keeps the start."""
_NO_SENTENCE = re.compile(
    r"[\s|^~-]*$"  # a caret, alone or in a margin
    r"|\s*\d* \| |\s*-->"  # a line of source in a diagnostic, and its place
    r"|\s*\d+: \S*(?:::|0x)|\s*(?:\[bt\]|at (?:0x|/)|#\d+ )"  # a C++ frame
    r'|\s*File "|\s*(?:Traceback|Stack trace|Backtrace)\b|\s*collect2: error: ld returned'
)
"""Lines of an error message that show where an error occurred, but do not explain the error."""


def message_of(error: BaseException) -> str:
    """Return the message of `error` as text that can be encoded. Never raises, even if the error's `__str__` does."""
    try:
        return _encodable(str(error))
    except BaseException as broken:
        return f"<no message: str() raised {name_of(broken)}>"


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class."""
    return _encodable(type(error).__name__)


def type_of(value: object) -> str:
    """Return the name of a value's class with an article, such as ``an int``. The value None is called ``None``."""
    if value is None:
        return "None"
    name = _encodable(type(value).__name__)
    return f"{'an' if name[:1].lower() in 'aeiou' or name == 'ndarray' else 'a'} {name}"


def name_and_message(error: BaseException) -> str:
    """Return an exception's class and message in the form that Python prints. Never raises."""
    return ": ".join(filter(None, (name_of(error), message_of(error))))


T = TypeVar("T")
asking: dict[int, tuple[float, Callable[[BaseException], BaseException]] | None] = {}
"""For each thread that runs a user's function: the start time (monotonic), and the argument `raised` of `asked`."""
_PASSING = frozenset({"KeyboardInterrupt", "CancelledError", "Cancelled", "GeneratorExit"})
"""Exceptions that interrupt the user's function, and that are not errors of the function."""


def asked(question: Callable[[], T], raised: Callable[[BaseException], BaseException], *, passes: bool = True) -> T:
    """Call `question`, which runs a user's function and may test whether its result is true. Return the result.

    `raised` converts an exception of the user's function into the error to raise. If `passes` is true, an interrupt or
    a cancellation propagates unchanged, except in a process that ignores SIGINT, such as a worker.
    """
    me = threading.get_ident()
    outer, asking[me] = asking.get(me), (time.monotonic(), raised)
    try:
        return question()
    except BaseException as error:
        if passes and name_of(error) in _PASSING and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise
        raise raised(error) from error
    finally:
        asking[me] = outer


def cause_in(text: str) -> str:
    """Return the first line of a message that explains the error: no source line, no caret and no C++ frame."""
    lines = text.splitlines()
    sentence = next((line for line in lines if not _NO_SENTENCE.match(line)), "")
    return _CHECK.sub("", sentence).strip().removesuffix(":")


def in_one_line(error: BaseException) -> str:
    """Return an exception's class and the line that explains it. TVM's class `InternalError` is omitted."""
    cause, name = cause_in(message_of(error)), name_of(error)
    return (cause if cause and name == "InternalError" else f"{name}: {cause}")[:MESSAGE_CHARACTERS]


def whole_message(error: BaseException) -> str:
    """Return the message of an exception if it has more than one line, otherwise an empty string."""
    text = message_of(error).strip()
    return text[:DETAIL_CHARACTERS] if "\n" in text else ""


def traceback_of(error: BaseException, limit: int | None = None) -> str:
    """Return the traceback that Python would print. `traceback.format_exception` explains `limit`. Never raises."""
    try:
        return _encodable("".join(traceback.format_exception(error, limit=limit)))
    except BaseException:
        return f"<no traceback> {name_and_message(error)}"


def _encodable(text: str) -> str:
    return str.encode(text, errors="backslashreplace").decode()  # journals and terminals refuse lone surrogates


class AtuneError(Exception):
    """The base class of the exceptions that atune raises on purpose. The exceptions can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy is made without __init__, whose parameters may be fields instead of args.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(AtuneError):
    """The call has a mistake. The message says what is wrong, where it is wrong, and what to do."""


class UnknownOption(UsageError, TypeError):
    """A call names an unknown option. The message suggests the right name. As in Python, the error is a TypeError."""


class SpaceError(UsageError):
    """The space is empty or malformed, or does not fit the kernel. Nothing was started. Fix the space."""


class ArgumentMissing(SpaceError):
    """Neither the space nor the problem gives an argument that the kernel needs, so no problem of a set is tuned."""


class WorkloadError(UsageError):
    """The workload cannot be loaded, described or sent to the workers, or it changed during the run. Fix the workload.
    The journal keeps all measurements."""


class NoSuchWorkload(WorkloadError):
    """The file cannot be loaded or does not contain the named workload, so no problem of a set can be tuned."""


class UnknownArgument(NoSuchWorkload):
    """The problem has an argument that the kernel does not take, so no problem of a set can be tuned."""


class InputsMisfit(WorkloadError):
    """The workload's inputs do not fit the parameters of a candidate's kernel."""


class InputsMissing(WorkloadError):
    """The value of a scalar parameter is unknown, and atune cannot guess the value. Pass `inputs` to the workload."""


class TargetError(UsageError):
    """The target or device is missing or not supported. Choose a target or device that `atune doctor` lists."""


class StrategyError(UsageError):
    """A search strategy raised an error or made an invalid proposal. Fix or replace it. The journal keeps results."""


class JournalError(UsageError):
    """The journal cannot be opened, written or read. Its earlier content is unchanged."""


class WorkerError(AtuneError):
    """A worker failed to do its job. `detail` is the end of the worker's stderr, such as the compiler's output."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class WorkerTimeout(WorkerError):
    """A job missed its deadline, so all processes of its worker were killed."""

    def __init__(self, message: str, detail: str = "", *, starved: bool = False) -> None:
        super().__init__(message, detail)
        self.starved = starved
        """Whether the machine was so busy that the job got too little CPU time to meet its deadline."""


class WorkerLost(WorkerError):
    """A worker's process ended before the worker answered: it crashed, was killed, or ran out of memory."""

    def __init__(self, message: str, detail: str = "", *, outside: bool = False) -> None:
        super().__init__(message, detail)
        self.outside = outside
        """Whether something else killed the process, with a signal that faulty code cannot cause, such as SIGKILL."""


class ServerLost(WorkerLost):
    """A worker ended because the worker's fork server had ended."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message, detail, outside=True)


class RemoteError(WorkerError):
    """A job raised an exception in a worker, and the worker still runs. `detail` is the traceback."""

    def __init__(self, message: str, detail: str = "", kind: str = "") -> None:
        super().__init__(message, detail)
        self.kind = kind
        """The name of the exception's class, such as ``WorkloadError``."""


def translated(error: RemoteError) -> AtuneError:
    """Return the exception that a worker reported, or a `WorkerError` if the exception's class is not from atune."""
    kind, message = globals().get(error.kind), str(error)
    if not (isinstance(kind, type) and issubclass(kind, AtuneError)) or kind in (NoWinner, CompileFailed):
        return WorkerError(message, error.detail)
    return kind(message, error.detail) if issubclass(kind, WorkerError) else kind(message)


class MachineError(AtuneError):
    """The machine is at fault, not a candidate: for example, a disk is full, or something kills the run's processes.

    The message says what happened, where, and what to do. The journal keeps all measurements, and `resume` continues
    the run.
    """


class DevicesLost(AtuneError):
    """All devices are lost: their processes failed to start or died too often. The journal keeps all measurements."""


class NoWinner(AtuneError):
    """No candidate worked. The message groups and counts the reasons, and `result` has a record of every candidate."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class CompileFailed(AtuneError):
    """Some configurations failed to compile. The message counts the reasons, and `failures` has the records."""

    def __init__(self, message: str, failures: list[Record]) -> None:
        super().__init__(message)
        self.failures = failures


class CacheMiss(AtuneError):
    """A call or a workload has no known result, and `on_miss="error"` forbids tuning. Tune first, or ship a result."""


def calling() -> tuple[FrameType, int]:
    """Return the frame of the user's code that called atune, and the number of levels from the caller to this frame."""
    own = ("atune", "functools")  # functools calls cached properties
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        frame, level = frame.f_back, level + 1
    return frame, level


def warn_caller(message: str, category: type[Warning]) -> None:
    """Show a warning at the line of the user's code that called atune, because the user has to act on the warning."""
    warnings.warn(message, category, stacklevel=calling()[1])
