"""A file written from what is known: whole or not at all, and never in a journal's place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from atune.errors import UsageError
from atune.journal.reader import is_journal
from atune.model.folders import whole_file


def write_output(path: str, data: bytes, *, private: bool = True) -> None:
    """Write `data` to a temporary file, then rename it to `path`. On failure, the old file stays.

    An existing file keeps its mode. A new `private` file is readable by its owner only; otherwise the umask decides.
    A special file, such as a pipe, is written directly. Raises `UsageError` if `path` is a journal, a source file of
    Python, or not writable.
    """
    try:
        real = os.path.realpath(path)  # a symbolic link stays a link
        there = os.stat(real) if os.path.exists(real) else None
        if there is not None and not stat.S_ISREG(there.st_mode) and not stat.S_ISDIR(there.st_mode):
            with open(path, "wb") as special:
                special.write(data)
            return
        if is_journal(real):
            raise UsageError(f"{path} is a journal, which is never overwritten: give another file")
        if there is not None and real.endswith(".py"):
            raise UsageError(f"{path} is a source file of Python, which is not overwritten: give another file")
        with whole_file(Path(real)) as part:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if there is not None:
                os.chmod(part, stat.S_IMODE(there.st_mode))
            elif not private:
                mask = os.umask(0o077)
                os.umask(mask)
                os.chmod(part, 0o666 & ~mask)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
