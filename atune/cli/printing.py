"""Printing of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

from atune.errors import UsageError
from atune.system.streams import discard


class OutputLost(UsageError):
    """Writing to stdout failed, for example on a full disk. Free some space, or redirect the output."""


def say(text: str) -> None:
    """Print `text` on stdout. Raises `OutputLost`, and `BrokenPipeError` if the reader left."""
    say_bytes(None, text)


def say_bytes(data: bytes | None, text: str = "") -> None:
    """Write `data` to stdout unchanged, or `text` as a line. Raises like `say`."""
    try:
        if data is None:
            print(text)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout, 1)
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputLost(f"cannot write to stdout: {error.strerror or error}") from error


def fitted(text: str) -> str:
    """Return `text` with its lines broken between words, as wide as stdout's terminal; as it is elsewhere."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    indent = " " * (11 if columns >= 60 else 2)  # under the values, where there is room
    wrapper = textwrap.TextWrapper(columns, break_on_hyphens=False, break_long_words=False, replace_whitespace=False)
    wrapper.subsequent_indent = indent
    lines = []
    for line in text.split("\n"):
        wrapper.initial_indent = indent if line.startswith(" ") else ""
        lines += wrapper.wrap(line.lstrip(" ")) or [line]
    return "\n".join(lines)


def fitted_rows(text: str) -> str:
    """Return a table's rows; those that are wider than stdout's terminal are broken between words."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(columns, break_on_hyphens=False, break_long_words=False, subsequent_indent="  ")
    rows = (
        [row] if len(row) <= columns else wrapper.wrap(re.sub(r"(?<=\S) {2,}", "  ", row)) for row in text.split("\n")
    )
    return "\n".join(line for row in rows for line in row)


def complain(message: str, kind: str = "error: ") -> None:
    """Print a line on stderr. Does nothing if stderr is closed."""
    mutter(f"atune: {kind}{message}\n")


def mutter(text: str) -> None:
    """Write `text` to stderr unchanged. Does nothing if stderr is closed."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr, 2)
