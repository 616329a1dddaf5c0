"""A lock that lets one process tune a key while the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import os

from atune.system.paths import make_private_folder


class TuningLock:
    """One process's claim to tune a key. It ends with the process, in any case."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self._fd = -1

    def acquire(self) -> bool:
        """Take the lock if it is free. Raises `OSError` if the folder is not writable."""
        make_private_folder(os.path.dirname(self.path))
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == os.stat(self.path).st_ino:
                self._fd = fd
                return True
        except (BlockingIOError, FileNotFoundError):
            pass  # held, or removed by its holder: the caller tries again
        os.close(fd)
        return False

    def release(self) -> None:
        """Release the lock and remove its file."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1
