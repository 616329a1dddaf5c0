"""The exceptions that atune raises to its callers.

A candidate that fails is never an exception: it is a `Failure` record. An exception is either the caller's mistake
(`UsageError` and its branches: fix the call, nothing was lost), or broken machinery (`WorkerError`, `JournalError`).
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
"""The exceptions that reach a caller; the other names are the rest of atune's."""


def __dir__() -> list[str]:
    return __all__


MESSAGE_CHARACTERS = 500
"""Most characters of an exception that are kept as a candidate's message."""
DETAIL_CHARACTERS = 4000
"""Most characters of its traceback and output that are kept."""
_CHECK = re.compile(r"Check failed: .*?(?: is false:|\(.*? vs\. .*?\) ?:) *(?=\S+ )")
"""TVM's text before the sentence of a failed check. A single word is a value, and no sentence."""
_NO_SENTENCE = re.compile(
    r"[\s|^~-]*$"  # a caret, alone or in a margin
    r"|\s*\d* \| |\s*-->"  # a line of source that a diagnostic shows, and where it is
    r"|\s*\d+: \S*(?:::|0x)|\s*(?:\[bt\]|at (?:0x|/)|#\d+ )"  # a C++ frame
    r'|\s*File "|\s*(?:Traceback|Stack trace|Backtrace)\b|\s*collect2: error: ld returned'
)
"""Lines of a message that show where something happened, and not what."""


def message_of(error: BaseException) -> str:
    """Return what `error` says, in text that can be encoded. Cannot fail, whatever its `__str__` does."""
    try:
        return _encodable(str(error))
    except BaseException as broken:
        return f"<no message: str() raised {name_of(broken)}>"


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class."""
    return _encodable(type(error).__name__)


def type_of(value: object) -> str:
    """Return the name of a value's class with its article, such as ``an int``."""
    name = _encodable(type(value).__name__)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def name_and_message(error: BaseException) -> str:
    """Return an exception's class and what it says, as Python shows them. Cannot fail."""
    return f"{name_of(error)}: {message_of(error)}"


T = TypeVar("T")
asking: dict[int, tuple[float, Callable[[BaseException], BaseException]] | None] = {}
"""Since when each thread waits for the answer of a function of the user's, monotonic, and what makes its error."""
_PASSING = frozenset({"KeyboardInterrupt", "CancelledError", "Cancelled", "GeneratorExit"})
"""Exceptions that the program itself raises in a function of the user's."""


def asked(question: Callable[[], T], raised: Callable[[BaseException], BaseException], *, passes: bool = True) -> T:
    """Return the answer to `question`, which calls a function of the user's and takes its answer's truth, if need be.

    `raised` makes the error for whatever it raises. Unless not `passes`, interrupts and cancellations pass, but where
    the signal is ignored, as in workers.
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
    """Return the sentence of a message that names the cause: its first that shows no source, caret or C++ frame."""
    lines = text.splitlines()
    told = next((line for line in lines if not _NO_SENTENCE.match(line)), "")
    return _CHECK.sub("", told).strip().removesuffix(":")


def in_one_line(error: BaseException) -> str:
    """Return an exception's class and the sentence that names the cause, without TVM's class, which says nothing."""
    cause, name = cause_in(message_of(error)), name_of(error)
    return (cause if cause and name == "InternalError" else f"{name}: {cause}")[:MESSAGE_CHARACTERS]


def whole_message(error: BaseException) -> str:
    """Return all that an exception says, where that is more than a line; empty otherwise."""
    text = message_of(error).strip()
    return text[:DETAIL_CHARACTERS] if "\n" in text else ""


def traceback_of(error: BaseException, limit: int | None = None) -> str:
    """Return the traceback as Python prints it; `limit` as in `traceback.format_exception`. Cannot fail."""
    try:
        return _encodable("".join(traceback.format_exception(error, limit=limit)))
    except BaseException:
        return f"<no traceback> {name_and_message(error)}"


def _encodable(text: str) -> str:
    return str.encode(text, errors="backslashreplace").decode()  # lone surrogates fit into no journal and no message


class AtuneError(Exception):
    """Root of everything atune raises on purpose. It can be copied, and sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without a call of its own __init__, which may take what is among its fields.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(AtuneError):
    """The call cannot work as given. The message says what is wrong, where, and what to do."""


class UnknownOption(UsageError, TypeError):
    """A call names an option that there is not. The message says which one was meant. A TypeError too, as Python's."""


class SpaceError(UsageError):
    """The space is empty, malformed, or does not fit the kernel. Fix the space; nothing was started."""


class ArgumentMissing(SpaceError):
    """Neither space nor problem has an argument that the kernel needs, so that no problem of a set can be tuned."""


class WorkloadError(UsageError):
    """The workload cannot be loaded, described or sent to the workers, or loads as other work during the run.

    Fix the workload; what was measured until then stays in the journal.
    """


class NoSuchWorkload(WorkloadError):
    """The file cannot be loaded, or has no such workload, so that no problem of a set can be tuned."""


class UnknownArgument(NoSuchWorkload):
    """The kernel takes no such argument of the problem, so that no problem of a set can be tuned."""


class InputsMisfit(WorkloadError):
    """The inputs that a workload gives are none that a candidate's kernel takes."""


class InputsMissing(WorkloadError):
    """A parameter of the kernel, a scalar, has no value that could be made up. Give the workload `inputs`."""


class TargetError(UsageError):
    """The target or device is not supported or not there. Choose another; `atune doctor` lists the choices."""


class StrategyError(UsageError):
    """A search strategy raised, or proposed what it must not. Mend it, or take another; what was measured stays."""


class JournalError(UsageError):
    """The journal cannot be opened, written or read. Its earlier content is unchanged."""


class WorkerError(AtuneError):
    """A worker did not deliver. `detail` is the tail of its stderr, what the device or compiler wrote."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class WorkerTimeout(WorkerError):
    """The call ran past its deadline; the worker's whole process group was killed."""

    def __init__(self, message: str, detail: str = "", *, starved: bool = False) -> None:
        super().__init__(message, detail)
        self.starved = starved
        """Whether it got hardly any CPU time, as on a busy machine: then the deadline says nothing about the work."""


class WorkerLost(WorkerError):
    """The worker's process ended before it answered: a crash, a kill from outside, or out of memory."""

    def __init__(self, message: str, detail: str = "", *, outside: bool = False) -> None:
        super().__init__(message, detail)
        self.outside = outside
        """Whether a signal ended it that no code raises by going wrong, such as SIGKILL: not by the work."""


class ServerLost(WorkerLost):
    """The worker ended because its fork server did."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message, detail, outside=True)


class RemoteError(WorkerError):
    """The entry point raised inside the worker, which lives on. `detail` is its traceback."""

    def __init__(self, message: str, detail: str = "", kind: str = "") -> None:
        super().__init__(message, detail)
        self.kind = kind
        """The exception's class name in the worker, such as ``WorkloadError``."""


def translated(error: RemoteError) -> AtuneError:
    """Return the exception that a worker reported, by the name of its class; a `WorkerError` if atune has no such."""
    found, message = globals().get(error.kind), str(error)
    if not (isinstance(found, type) and issubclass(found, AtuneError)) or found in (NoWinner, CompileFailed):
        return WorkerError(message, error.detail)
    return found(message, error.detail) if issubclass(found, WorkerError) else found(message)


class MachineError(AtuneError):
    """The machine failed the run, not a candidate: its disk is full, say, or something kills the run's processes.

    The message says what happened, where, and what to do. What was measured stays; `resume` goes on from there.
    """


class DevicesLost(AtuneError):
    """Every device's process failed to start or was lost for good. The journal keeps what was measured."""


class NoWinner(AtuneError):
    """No candidate of the space worked. The message groups and counts the reasons; `result` holds every record."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class CompileFailed(AtuneError):
    """Configurations failed to compile. The message counts the reasons; `failures` are their records."""

    def __init__(self, message: str, failures: list[Record]) -> None:
        super().__init__(message)
        self.failures = failures


class CacheMiss(AtuneError):
    """No result is known for a call or a workload, and nothing may tune (`on_miss="error"`). Tune, or ship a result."""


def calling() -> tuple[FrameType, int]:
    """Return the frame that called atune, which is the user's, and how many levels it is above the caller's."""
    own = ("atune", "functools")  # functools calls cached properties
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        frame, level = frame.f_back, level + 1
    return frame, level


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line that called atune: it is the user's, and so is what to do about the warning."""
    warnings.warn(message, category, stacklevel=calling()[1])
