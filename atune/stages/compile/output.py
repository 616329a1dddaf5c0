"""Compiler output: capture, and its most informative line."""

from __future__ import annotations

import os
import sys
import tempfile

MAX_OUTPUT = 20_000
"""Bytes of compiler output that are kept."""


class CompileError(Exception):
    """A compiler refused the source. Its output is in the message's later lines."""


def first_error(text: str) -> str:
    """Return the most informative line of compiler output: the linker's missing symbol, the first error, the first
    line."""
    lines = text.splitlines()
    for wanted in ("undefined reference", "error: ", "error", "fatal"):
        if found := next((line for line in lines if wanted in line.lower()), None):
            return found
    return lines[0] if lines else ""


class CompilerOutput:
    """Capture the output of this process and its compilers to stdout and stderr, if `wanted`.

    Afterwards it is written there, too. A crash in between only loses the contents of this file.
    """

    def __init__(self, wanted: bool) -> None:
        self._file = tempfile.TemporaryFile() if wanted else None  # noqa: SIM115

    def __enter__(self) -> CompilerOutput:
        if self._file is not None:
            self._flush()
            self._saved = [(fd, os.dup(fd)) for fd in (1, 2)]
            for fd, _ in self._saved:
                os.dup2(self._file.fileno(), fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._flush()
            for fd, saved in self._saved:
                os.dup2(saved, fd)
                os.close(saved)
            sys.stderr.write(self.text())

    def text(self) -> str:
        """Return the tail of the output so far."""
        if self._file is None:
            return ""
        self._flush()
        size = os.fstat(self._file.fileno()).st_size
        data = os.pread(self._file.fileno(), MAX_OUTPUT, max(0, size - MAX_OUTPUT))
        return data.decode(errors="replace").strip()

    @staticmethod
    def _flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
