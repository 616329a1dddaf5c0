"""The exceptions that atune raises to its callers.

A candidate that fails never raises: it becomes a `Failure` record. An exception means either that the caller made a
mistake (`UsageError` and its subclasses: fix the call, nothing was lost), or that machinery broke (`WorkerError`,
`MachineError`).
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
"""The exceptions that reach a caller. Other names in this module are for atune itself."""


def __dir__() -> list[str]:
    return __all__


MESSAGE_CHARACTERS = 500
"""Largest number of characters that atune keeps of the message of a candidate's exception."""
DETAIL_CHARACTERS = 4000
"""Largest number of characters that atune keeps of a candidate's traceback or output."""
_CHECK = re.compile(r"Check failed: .*?(?: is false:|\(.*? vs\. .*?\) ?:) *(?=\S+ )")
"""TVM's text before the sentence that explains a failed check. A single word after it is a value instead."""
_NO_SENTENCE = re.compile(
    r"[\s|^~-]*$"  # a caret, alone or in a margin
    r"|\s*\d* \| |\s*-->"  # a line of source in a diagnostic, and its place
    r"|\s*\d+: \S*(?:::|0x)|\s*(?:\[bt\]|at (?:0x|/)|#\d+ )"  # a C++ frame
    r'|\s*File "|\s*(?:Traceback|Stack trace|Backtrace)\b|\s*collect2: error: ld returned'
)
"""Lines of a message that show where something happened instead of explaining it."""


def message_of(error: BaseException) -> str:
    """Return the message of `error` as text that can be encoded. Never fails, even if its `__str__` raises."""
    try:
        return _encodable(str(error))
    except BaseException as broken:
        return f"<no message: str() raised {name_of(broken)}>"


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class."""
    return _encodable(type(error).__name__)


def type_of(value: object) -> str:
    """Return the name of a value's class with its article, such as ``an int``, or None."""
    if value is None:
        return "None"
    name = _encodable(type(value).__name__)
    return f"{'an' if name[:1].lower() in 'aeiou' or name == 'ndarray' else 'a'} {name}"


def name_and_message(error: BaseException) -> str:
    """Return an exception's class and message, as Python shows them. Never fails."""
    return f"{name_of(error)}: {message_of(error)}"


T = TypeVar("T")
asking: dict[int, tuple[float, Callable[[BaseException], BaseException]] | None] = {}
"""For each thread that runs a function of the user's: the function's start (monotonic), and `raised` of `asked`."""
_PASSING = frozenset({"KeyboardInterrupt", "CancelledError", "Cancelled", "GeneratorExit"})
"""Exceptions that interrupt a function of the user's, as opposed to errors in it."""


def asked(question: Callable[[], T], raised: Callable[[BaseException], BaseException], *, passes: bool = True) -> T:
    """Return the answer to `question`, which calls a function of the user's and may test its answer for truth.

    `raised` turns an exception of the function into the error to raise. If `passes`, interrupts and cancellations pass
    unchanged, except in processes that ignore SIGINT, such as workers.
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
    """Return the sentence that names the cause: the message's first line that is not source, a caret or a C++ frame."""
    lines = text.splitlines()
    sentence = next((line for line in lines if not _NO_SENTENCE.match(line)), "")
    return _CHECK.sub("", sentence).strip().removesuffix(":")


def in_one_line(error: BaseException) -> str:
    """Return an exception's class and the sentence that names its cause. TVM's class, `InternalError`, is left out."""
    cause, name = cause_in(message_of(error)), name_of(error)
    return (cause if cause and name == "InternalError" else f"{name}: {cause}")[:MESSAGE_CHARACTERS]


def whole_message(error: BaseException) -> str:
    """Return the message of an exception if it has more than one line, otherwise an empty string."""
    text = message_of(error).strip()
    return text[:DETAIL_CHARACTERS] if "\n" in text else ""


def traceback_of(error: BaseException, limit: int | None = None) -> str:
    """Return the traceback as Python prints it; `limit` as in `traceback.format_exception`. Never fails."""
    try:
        return _encodable("".join(traceback.format_exception(error, limit=limit)))
    except BaseException:
        return f"<no traceback> {name_and_message(error)}"


def _encodable(text: str) -> str:
    return str.encode(text, errors="backslashreplace").decode()  # journals and terminals refuse lone surrogates


class AtuneError(Exception):
    """Base class of every exception that atune raises on purpose. It can be copied, and sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy is made without __init__, whose parameters may be fields instead of args.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(AtuneError):
    """The call cannot work as given. The message says what is wrong, where, and what to do."""


class UnknownOption(UsageError, TypeError):
    """A call names an unknown option. The message suggests the right name. As in Python, this is also a TypeError."""


class SpaceError(UsageError):
    """The space is empty, malformed, or does not fit the kernel. Fix the space; nothing was started."""


class ArgumentMissing(SpaceError):
    """Neither the space nor the problem gives an argument that the kernel needs. No problem of the set can be tuned."""


class WorkloadError(UsageError):
    """The workload cannot be loaded, described or sent to the workers, or it changed during the run.

    Fix the workload. The journal keeps all measurements.
    """


class NoSuchWorkload(WorkloadError):
    """The file cannot be loaded, or lacks the named workload, so no problem of a set can be tuned."""


class UnknownArgument(NoSuchWorkload):
    """The problem has an argument that the kernel does not take, so no problem of a set can be tuned."""


class InputsMisfit(WorkloadError):
    """The workload's inputs do not fit the parameters of a candidate's kernel."""


class InputsMissing(WorkloadError):
    """A scalar parameter of the kernel has no value, and atune cannot invent it. Give the workload `inputs`."""


class TargetError(UsageError):
    """The target or device is missing or not supported. Choose another: `atune doctor` lists them."""


class StrategyError(UsageError):
    """A search strategy raised an error or made a forbidden proposal. Fix or replace it. The journal keeps results."""


class JournalError(UsageError):
    """The journal cannot be opened, written or read. Its earlier content is unchanged."""


class WorkerError(AtuneError):
    """A worker failed to do its job. `detail` is the tail of its stderr, with the compiler's or the device's output."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class WorkerTimeout(WorkerError):
    """The call ran past its deadline; the worker's whole process group was killed."""

    def __init__(self, message: str, detail: str = "", *, starved: bool = False) -> None:
        super().__init__(message, detail)
        self.starved = starved
        """Whether the call got hardly any CPU time because the machine was busy. The work itself may then be fast."""


class WorkerLost(WorkerError):
    """The worker's process ended before it answered: a crash, a kill from outside, or out of memory."""

    def __init__(self, message: str, detail: str = "", *, outside: bool = False) -> None:
        super().__init__(message, detail)
        self.outside = outside
        """Whether the cause is outside of the work: a signal that faulty code does not raise, such as SIGKILL."""


class ServerLost(WorkerLost):
    """The worker ended because its fork server ended."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message, detail, outside=True)


class RemoteError(WorkerError):
    """The job raised an exception inside the worker, which lives on. `detail` is the traceback."""

    def __init__(self, message: str, detail: str = "", kind: str = "") -> None:
        super().__init__(message, detail)
        self.kind = kind
        """The exception's class name in the worker, such as ``WorkloadError``."""


def translated(error: RemoteError) -> AtuneError:
    """Return the exception that a worker reported. A class of atune's is kept; any other becomes `WorkerError`."""
    kind, message = globals().get(error.kind), str(error)
    if not (isinstance(kind, type) and issubclass(kind, AtuneError)) or kind in (NoWinner, CompileFailed):
        return WorkerError(message, error.detail)
    return kind(message, error.detail) if issubclass(kind, WorkerError) else kind(message)


class MachineError(AtuneError):
    """The machine, not a candidate, failed: its disk is full, for example, or something kills the run's processes.

    The message says what happened, where, and what to do. The journal keeps the measurements; `resume` continues.
    """


class DevicesLost(AtuneError):
    """The process of every device failed to start, or died too often. The journal keeps the measurements."""


class NoWinner(AtuneError):
    """No candidate of the space worked. The message groups and counts the reasons; `result` holds every record."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class CompileFailed(AtuneError):
    """Configurations failed to compile. The message counts the reasons; `failures` has their records."""

    def __init__(self, message: str, failures: list[Record]) -> None:
        super().__init__(message)
        self.failures = failures


class CacheMiss(AtuneError):
    """No result is known for a call or a workload, and `on_miss="error"` forbids tuning. Tune, or ship a result."""


def calling() -> tuple[FrameType, int]:
    """Return the user's frame that called atune, and the number of levels from the caller's frame up to that frame."""
    own = ("atune", "functools")  # functools calls cached properties
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        frame, level = frame.f_back, level + 1
    return frame, level


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the user's line that called atune, because the user has to act on the warning."""
    warnings.warn(message, category, stacklevel=calling()[1])
