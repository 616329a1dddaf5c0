"""A journal without a name: it gets one where its run is interrupted, and leaves nothing behind where it is not."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from atune.journal.events import Event
from atune.journal.writer import line_of
from atune.system.paths import make_private_folder


class SpareJournal:
    """A listener that writes events into a file of `folder` that has no name, or a hidden one, until `keep`.

    Nothing is synced: it is for a program that is interrupted, and not for a machine that fails. What cannot be
    written ends it silently.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._part = folder, ""
        self._fd = -1
        make_private_folder(str(folder))
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            self._fd = os.open(folder, flags | os.O_TMPFILE, 0o600)
        except OSError:  # not every file system can
            self._part = str(folder / f".{os.getpid()}-{id(self):x}.part")
            self._fd = os.open(self._part, flags | os.O_CREAT | os.O_EXCL, 0o600)

    @classmethod
    def opened(cls, folder: Path) -> Self | None:
        """Return a new one; None where `folder` cannot be written."""
        try:
            return cls(folder)
        except OSError:
            return None

    def __call__(self, event: Event) -> None:
        """Write `event`."""
        if self._fd < 0:
            return
        try:
            line = line_of(event)
            if os.write(self._fd, line) < len(line):
                self.close()
        except OSError:
            self.close()

    def keep(self, name: str) -> Path | None:
        """Name the file `name`, and let go of it. Returns its path; None where it could not be written or named."""
        path, kept = self._folder / name, False
        if self._fd >= 0:
            with suppress(OSError):
                if self._part:
                    os.rename(self._part, path)
                    self._part = ""
                else:
                    _link(self._fd, path)
                kept = True
        self.close()
        return path if kept else None

    def close(self) -> None:
        """Let go of the file. One that was not kept is gone. Twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._part:
            with suppress(OSError):
                os.unlink(self._part)
            self._part = ""


def _link(fd: int, path: Path) -> None:
    """Give the nameless file `fd` the name `path`. Raises `OSError`."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor Python calls linkat, which follows the link in /proc; link does not.
        os.link(f"/proc/self/fd/{fd}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
