"""Printing of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys

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
