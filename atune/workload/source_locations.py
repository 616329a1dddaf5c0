"""Finding the line in the user's own code that raised, from an exception or from the text of a traceback."""

from __future__ import annotations

import itertools
import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

import msgspec

from atune.errors import DETAIL_CHARACTERS, WorkloadError, asked, name_and_message, traceback_of

T = TypeVar("T")
FOREIGN_PATHS = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<frozen |^<unknown>$|"
    r"/tilelang/(?:language|jit|engine|transform|autotuner|utils|tileop)/|"
    r"/atune/(?:bundle|compat|engine|frontends|journal|model|reporting|stages|testing|workers|workload)/|"
    r"/atune/(?:layout|errors)\.py$"
)
"""Paths of files that are not the user's own code."""
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_STACK_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
"""A line of the stack that Python writes when a signal kills the process. The innermost call comes first."""
REWRITTEN = "/tilelang/language/"
"""Folder of the functions with which tilelang calls kernels that it has rewritten."""
EVALUATED = "<string>"
"""File name that Python gives to code that it evaluates from a string."""
DETAIL_FRAMES = 6


class Place(msgspec.Struct, frozen=True):
    """A line of a source file. `source`: the line, stripped. `caret`: marks below some columns, or empty."""

    file: str
    line: int
    function: str = ""
    source: str = ""
    caret: str = ""

    def lines(self) -> list[str]:
        """Return the place as the lines that a Python traceback has for it."""
        function = f", in {self.function}" if self.function else ""
        below = [f"  {text}" for text in (self.source, self.caret) if text]
        return [f'File "{self.file}", line {self.line}{function}', *below]


def is_users(file: str) -> bool:
    """Tell whether `file` in a traceback is the user's own, and not from a library, Python or atune."""
    return (file.endswith(".py") or file.startswith("<")) and FOREIGN_PATHS.search(file) is None


def place_in(text: str) -> Place | None:
    """Return the innermost place in the user's own code from a traceback's `text`; None if there is none.

    If the text has no traceback, use the stack that Python writes when a signal kills the process.
    """
    lines = text.splitlines()
    frames = [_FRAME.match(line) for line in lines]
    number = _innermost([None if frame is None else frame["file"] for frame in frames])
    frame = None if number is None else frames[number]
    if number is None or frame is None:
        stack = filter(None, map(_STACK_FRAME.match, lines))
        inner = next((frame for frame in stack if is_users(frame["file"])), None)
        return None if inner is None else Place(inner["file"], int(inner["line"]), inner["function"])
    margin = len(lines[number]) - len(lines[number].lstrip()) + 2
    below = [line for line in lines[number + 1 : number + 3] if line.startswith(" " * margin)]
    source = below[0][margin:].rstrip() if below else ""
    caret = below[1][margin:].rstrip() if len(below) > 1 and not below[1].strip(" ~^") else ""
    return Place(frame["file"], int(frame["line"]), frame["function"] or "", source, caret)


def _innermost(files: Sequence[str | None]) -> int | None:
    """Return the index of the user's innermost file, or None. `files` begins with the outermost file.

    A string that Python evaluates, such as an annotation, is the user's file only if no other file is.
    """
    users = [i for i, file in enumerate(files) if file is not None and is_users(file)]
    return max([i for i in users if files[i] != EVALUATED] or users, default=None)


def place_of(error: BaseException) -> Place | None:
    """Return the innermost place in the user's own code from the traceback of `error`, or None. Never raises."""
    return place_in(detail_of(error))


def _place_of(error: BaseException) -> tuple[Place | None, str]:
    """Return the innermost place in the user's own code, and what Python's traceback shows for this place."""
    steps, step = list[TracebackType](), error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    number = _innermost([step.tb_frame.f_code.co_filename for step in steps])
    if number is None:
        return None, ""
    frames = traceback.TracebackException.from_exception(error, limit=number + 1).stack
    shown = "".join(traceback.StackSummary.from_list(frames[number:]).format())
    place = place_in(shown)
    caller = steps[number - 1].tb_frame.f_code.co_filename if number else ""
    if place is not None and REWRITTEN in caller:
        line = _line(steps[number])
        if line != place.line:
            source = linecache.getline(place.file, line).strip()
            place = msgspec.structs.replace(place, line=line, source=source, caret="")
        elif place.caret:
            code = steps[number].tb_frame.f_code
            first = linecache.getline(code.co_filename, code.co_firstlineno)
            indent = first[: len(first) - len(first.lstrip())]  # tilelang counts columns from the indent
            place = msgspec.structs.replace(place, caret=indent + place.caret)
    return place, shown


def _line(step: TracebackType) -> int:
    """Return the line for a step of a traceback, in a function that tilelang has rewritten.

    tilelang gives line 1 to calls in the head of a loop. tilelang gives the function's first line to code that it adds
    around a statement. In both cases, the right line is the line of the preceding code.
    """
    code, line = step.tb_frame.f_code, step.tb_lineno
    before = [number for number, *_ in itertools.islice(code.co_positions(), step.tb_lasti // 2)]
    first = code.co_firstlineno
    return line if line > first else next((number for number in reversed(before) if number and number > first), first)


def detail_of(error: BaseException) -> str:
    """Return the end of the traceback, after correcting the innermost place of the user's own code. Never raises."""
    text = traceback_of(error, limit=-DETAIL_FRAMES)[-DETAIL_CHARACTERS:]
    try:
        place, shown = _place_of(error)
        if place is None:
            return text
        right = "".join(f"  {line}\n" for line in place.lines())
        return text.replace(shown, right, 1) if shown in text else f"{right}  …\n{text}"
    except BaseException:
        return text


def located(message: str, error: BaseException) -> str:
    """Return `message`, followed by the place in the user's own code that raised `error`, if the place is known."""
    place = place_of(error)
    return message if place is None else "\n".join([message, *(f"  {line}" for line in place.lines())])


def ask(what: str, question: Callable[[], T], hint: str = "") -> T:
    """Return the result of `question`, which calls a function of a workload. `what`: the name of that function.

    If `question` raises, raise `WorkloadError` with the place in the user's code, or with `hint` if the call failed.
    """

    def raised(error: BaseException) -> WorkloadError:
        message = f"{what} raised {name_and_message(error)}"
        text = located(message, error)
        return WorkloadError(f"{text}; {hint}" if hint and text == message else text)

    return asked(question, raised, passes=False)
