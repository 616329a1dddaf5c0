"""Private folders of runs and fork servers below `$TMPDIR/atune-UID`. Those of killed programs are removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from atune.errors import UsageError

SERVER_FOLDER = "ATUNE_SERVER_FOLDER"
"""Environment variable of a fork server and its workers: the server's folder."""


def server_folder() -> tuple[Path, Callable[[], None]]:
    """Make a folder for a fork server, which may outlive the run. Returns it with a function that removes it."""
    folder, lock = _make_folder("server-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()

    return folder, remove


@contextmanager
def short_path(folder: str) -> Generator[str, None, None]:
    """Give `folder` a short path inside the block, because a socket's address holds only 107 bytes."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextmanager
def whole_file(path: Path) -> Generator[str, None, None]:
    """Yield a temporary path, and rename it to `path` on success. Others never see an incomplete file."""
    fd, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(fd)
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


@contextmanager
def run_folder() -> Generator[str, None, None]:
    """Make a private folder for one run, and remove it afterwards."""
    folder, lock = _make_folder("run-")
    try:
        yield str(folder)
    finally:
        for _ in range(3):  # a compiler that was just killed may still have made a file
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
        lock.close()


def private_root() -> Path:
    """Return this user's folder below `$TMPDIR`, and make it if needed. Raises `UsageError` if it is not private."""
    root = Path(tempfile.gettempdir()) / f"atune-{os.getuid()}"
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(
            f"{root} must be a folder that is yours alone (mode 700, no link); set TMPDIR to another place"
        )
    return root


def _make_folder(prefix: str) -> tuple[Path, ExitStack]:
    """Make and lock a folder. Remove the folders of killed programs, whose locks ended with them.

    The root is locked during this, so that nobody removes a new folder before it is locked.
    """
    root = private_root()
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for old in root.iterdir():
            if old.name.startswith(("run-", "server-")) and (stack := _locked(old)) is not None:
                with stack:
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        lock = _locked(folder)
    finally:
        os.close(fd)
    assert lock is not None, "a new folder, and the root is locked"
    return folder, lock


def _locked(folder: Path) -> ExitStack | None:
    """Lock a run's folder, or return None while its run is alive. The lock ends with its process."""
    stack = ExitStack()
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stack.close()
        return None
    return stack


def made_folder(*parts: str) -> str:
    """Join `parts` and make that folder, with those above it."""
    path = os.path.join(*parts)
    os.makedirs(path, exist_ok=True)
    return path
