"""Where a resident server is, who is at the other end of its socket, and what it can be asked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path

from atune.errors import UsageError
from atune.system.folders import private_root

VARIABLE = "ATUNE_SERVER"
"""Environment variable: ``off`` means that no resident server is used."""
SESSION, SERVICE, STATUS, STOP = b"session", b"service", b"status", b"stop"
"""Requests."""
MESSAGE_BYTES = 1 << 16
CREDENTIALS = struct.Struct("iII")
"""Process, user and group at the other end of a socket (Linux, ``struct ucred``)."""


class Place:
    """Where this user's resident server for this Python is: its socket, lock and log in one folder."""

    def __init__(self) -> None:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        self.below_runtime = os.path.isabs(runtime) and os.path.isdir(runtime)
        root = Path(runtime, "atune") if self.below_runtime else Path(tempfile.gettempdir(), f"atune-{os.getuid()}")
        name = hashlib.sha256(f"{sys.executable}\0{sys.prefix}".encode(errors="surrogateescape")).hexdigest()[:16]
        self.folder = root
        self.socket, self.lock, self.log = (root / f"resident-{name}.{kind}" for kind in ("socket", "lock", "log"))

    def make(self) -> None:
        """Make the folder if it is missing. Raises `UsageError` if others have access to it, or it cannot be made."""
        try:
            if self.below_runtime:
                self.folder.mkdir(mode=0o700, exist_ok=True)
            else:
                private_root()
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be made: {error.strerror or error}") from error
        if why := self.unsafe():
            raise UsageError(f"{why}; set XDG_RUNTIME_DIR or TMPDIR to another place")

    def holder(self) -> int:
        """Return the process that holds the lock, by its own account; zero if none does, or the folder is unsafe."""
        if self.unsafe():
            return 0
        try:
            with open(self.lock, "rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(lock.read() or b"0")
        except (OSError, ValueError):
            pass
        return 0

    def unsafe(self) -> str:
        """Say why the folder is unsafe; empty if only this user has access to it."""
        try:
            found = os.lstat(self.folder)
        except OSError as error:
            return f"{self.folder} cannot be looked at: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return f"{self.folder} must be a folder that is yours alone (mode 700, no link)"
        return ""


def found() -> Place | None:
    """Return where the resident server is, if there is one and it may be used. Costs two stats."""
    if os.environ.get(VARIABLE) == "off":
        return None
    place = Place()
    return place if os.path.lexists(place.socket) else None


def peer(sock: socket.socket) -> int:
    """Return the user at the other end of a Unix socket, according to the kernel."""
    _, user, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(user)
