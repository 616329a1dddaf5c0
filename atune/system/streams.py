"""Standard streams at the command line: closed ones, full ones, and ones that cannot show a character."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


def prepare() -> None:
    """Make stdin, stdout and stderr usable, whatever this process was started with.

    A closed one becomes the null device, so that no journal gets its number and is written into by what prints there.
    A character that one cannot show is written as its escape.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDWR)
            os.dup2(fd, number)
            if fd > 2:
                os.close(fd)
    if sys.stdout is None:
        sys.stdout = _null()
    if sys.stderr is None:
        sys.stderr = _null()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: TextIO, number: int) -> None:
    """Let what is still in `stream`'s buffer, and all that follows, go nowhere: Python would fail on it at its exit."""
    with suppress(OSError, ValueError):
        if stream.fileno() == number:
            fd = os.open(os.devnull, os.O_WRONLY)
            os.dup2(fd, number)
            os.close(fd)


def _null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
