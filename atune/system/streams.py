"""Repair of standard streams at the command line: closed, full, or unable to encode a character."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


def prepare() -> None:
    """Make stdin, stdout and stderr usable.

    A closed stream becomes the null device. Otherwise a journal could get its descriptor, and prints would go into
    the journal. Characters that a stream cannot encode are written as escapes.
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
    """Discard the rest of `stream`'s buffer and all later writes, on which Python would fail at exit."""
    with suppress(OSError, ValueError):
        if stream.fileno() == number:
            fd = os.open(os.devnull, os.O_WRONLY)
            os.dup2(fd, number)
            os.close(fd)


def _null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
