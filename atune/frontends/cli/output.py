"""The output of commands to stdout, to stderr and to files, and the error messages of commands."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atune.errors import AtuneError, UsageError, WorkerError, message_of
from atune.model.requirements import not_installed
from atune.reporting.text import Line, fitted, shown
from atune.workers.terminal import discard

if TYPE_CHECKING:
    import argparse

    from atune.journal.result import Result


class OutputLost(UsageError):
    """Writing to stdout failed, for example on a full disk. Free some space, or redirect the output."""


def print_out(text: str) -> None:
    """Print `text` on stdout. Raises `OutputLost`, or `BrokenPipeError` if the program that reads stdout has ended."""
    _write_out(f"{shown(text)}\n")


def _write_out(data: str | bytes) -> None:
    """Write `data` to stdout unchanged. Raises like `print_out`."""
    try:
        if isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout, 1)
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputLost(f"cannot write to stdout: {error.strerror or error}") from error


def write(data: bytes, output: str, done: str, arguments: argparse.Namespace) -> int:
    """Write `data` to the file `output` (``-`` means stdout), and print a line that begins with `done`."""
    from atune.journal.writer import write_output  # here, because few commands write files

    if output == "-":
        _write_out(shown(data.decode()) if sys.stdout.isatty() else data)
    else:
        write_output(output, data)
        print_out(json_text.dumps({"output": output}) if arguments.json else f"{done}   {output}")
    return 0


def print_lines(lines: Iterable[Line]) -> None:
    """Print `lines` on stdout, fitted to the terminal's width and colours. Raises like `print_out`."""
    _write_out(f"{fitted(lines, sys.stdout)}\n")


def answer(arguments: argparse.Namespace, data: Callable[[], object], lines: Callable[[], Iterable[Line]]) -> None:
    """Print what a command found: with --json, the object `data` on one line, and otherwise `lines`."""
    if arguments.json:
        print_out(json_text.dumps(data()))
    else:
        print_lines(lines())


def print_message(message: str, kind: str = "error: ") -> None:
    """Print a message on stderr, fitted to the terminal, with errors in red. Does nothing if stderr is closed."""
    first, *further = f"atune: {kind}{message}".split("\n")
    lines = [Line(first, "error" if kind == "error: " else ""), *map(Line, further)]
    _write_err(f"{fitted(lines, sys.stderr)}\n")


def print_err(text: str) -> None:
    """Write `text` to stderr. Does nothing if stderr is closed."""
    _write_err(shown(text))


def _write_err(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr, 2)


NO_WINNER, USAGE = 1, 2


def report_error(error: BaseException, *, debug: bool, json: bool = False, result: Result | None = None) -> int:
    """Print `error` and return the exit status. For a caller's mistake, print one line and the place in the code.

    `json`: as the last line of stdout, also print a JSON object with the error and the summary of `result`.
    """
    if debug:
        import traceback

        print_err("".join(traceback.format_exception(error)))
    if isinstance(error, BaseExceptionGroup):
        from atune.frontends.blocking import unwrapped  # imports anyio, which may be missing

        error = unwrapped(error)
    absent = not_installed(error.name) if isinstance(error, ImportError) else ""
    if absent:
        error = UsageError(absent)
    if isinstance(error, UnicodeEncodeError):  # a path causes it, because printed text is escaped
        locale = sys.getfilesystemencoding()
        error = UsageError(f"this locale's encoding, {locale}, cannot express {error.object[:200]!a}: set PYTHONUTF8=1")
    if isinstance(error, AtuneError):
        print_message(str(error))
        if isinstance(error, WorkerError) and error.detail:
            print_err("".join(f"    {line}\n" for line in error.detail.splitlines()[-20:]))
    else:
        hint = "" if debug else "; add --debug to see the traceback"
        print_message(f"{type(error).__name__}: {error} (this is a bug in atune{hint})")
    if json and not isinstance(error, OutputLost):
        known = {}
        if result is not None:  # imported only if needed, because the missing package may be msgspec
            from atune.reporting.summary import summary

            known = summary(result)
        with suppress(BrokenPipeError, OutputLost):  # stderr has the error
            print_out(json_text.dumps({**known, "error": error_data(error)}))
    return USAGE if isinstance(error, UsageError) else NO_WINNER


def error_data(error: BaseException) -> dict[str, Any]:
    """Return the data that ``--json`` prints about an error: the class, the message, and the place in user code."""
    message = message_of(error)
    detail = error.detail if isinstance(error, WorkerError) else ""
    where = None
    if "File " in message + detail:  # imported only if needed, as in `report_error`
        import msgspec

        from atune.workload.source_locations import place_in

        where = msgspec.to_builtins(place_in(message) or place_in(detail))
    return {"kind": type(error).__name__, "message": message.partition("\n  File ")[0], "where": where}
