"""atune's folders: the user's cache, and private folders of runs and fork servers in `$TMPDIR/atune-UID`.

If a program is killed, a later run removes the program's private folders.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import FileFinder
from pathlib import Path
from typing import IO, Literal

from atune.errors import AtuneError, UsageError, warn_caller
from atune.model.artifact import Artifact

CACHE_VARIABLE = "ATUNE_CACHE_DIR"
ARTIFACTS = "artifacts"
chosen_folder: ContextVar[Path | None] = ContextVar("atune_cache_folder", default=None)
"""The folder of the innermost `cache_folder_at`, or None. New threads do not inherit this folder."""
_named: set[Path] = set()
"""Folders that this program itself chose. The program may load libraries from these folders."""


@contextmanager
def cache_folder_at(folder: Path | None) -> Generator[None, None, None]:
    """Inside the block, keep atune's files in `folder`, for this thread or task and for tasks that it starts."""
    if folder is None:
        yield
        return
    _named.add(folder.absolute())
    before = chosen_folder.set(folder.absolute())
    try:
        yield
    finally:
        chosen_folder.reset(before)


def cache_folder() -> Path:
    """Return the path of atune's folder in the user's cache. The folder may not exist yet.

    The path is ``$ATUNE_CACHE_DIR`` if this path is absolute, or else ``$XDG_CACHE_HOME/atune`` or ``~/.cache/atune``.
    """
    chosen = chosen_folder.get()
    if chosen is not None:
        return chosen
    if os.path.isabs(own := os.environ.get(CACHE_VARIABLE, "")):
        return Path(own)
    if own:
        _warn_of(own)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification says to ignore relative paths.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "atune"


@functools.cache
def _warn_of(relative: str) -> None:
    warn_caller(f"{CACHE_VARIABLE}={relative} is ignored: give an absolute path", RuntimeWarning)


def artifacts_folder() -> Path:
    """Return the path of the folder for stored libraries. The folder may not exist yet."""
    return cache_folder() / ARTIFACTS


def is_cached(path: str) -> bool:
    """Return whether `path` is in the cache folder, or in another folder that this program chose."""
    real = Path(path).resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in (cache_folder(), *_named))


def untrusted(path: str | os.PathLike[str], so: str = "no library is kept there or loaded from there") -> str:
    """Return a warning if another user owns `path`, or may write to `path` or a folder above it; otherwise, return "".

    Folders above the cache folder are not checked, and root is trusted. `so`: the consequence that the warning states.
    """
    real, roots = Path(path).resolve(), [folder.resolve() for folder in (cache_folder(), *_named)]
    inside = any(real.is_relative_to(root) for root in roots)
    for place in (real, *real.parents) if inside else (real,):
        with suppress(FileNotFoundError, NotADirectoryError):  # if it is missing, this user will create and own it
            status = place.stat()
            if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
                whose = "other users may write to" if status.st_mode & 0o022 else "another user owns"
                own = f"set {CACHE_VARIABLE} to a folder that only you can write to"
                return f"{whose} {place}, so {so}: {own}"
        if place in roots:
            break
    return ""


def store_file(folder: Path, kind: Literal["codes", "lowered"], key: str) -> Path:
    """Return the path of a record in the artifact store `folder`.

    `key`: if `kind` is ``codes``, the key of a library's code; if `kind` is ``lowered``, the key of a lowered kernel.
    """
    return folder / kind / f"{key}.json"


def is_stored(path: str) -> bool:
    """Return whether `path` leads to a library in the artifact store whose content matches its file name."""
    real = Path(path).resolve()
    if real.parent not in {(folder / ARTIFACTS).resolve() for folder in (cache_folder(), *_named)}:
        return False
    try:
        return f"{hashlib.sha256(real.read_bytes()).hexdigest()}.so" == real.name
    except OSError:
        return False


def loadable(artifact: Artifact | None, *, replayed: bool) -> Artifact:
    """Return the library of the winner. Raises `AtuneError` if the library is missing or not safe to load.

    `replayed`: whether the path comes from a journal. In that case, only a library in the cache folder is safe.
    """
    if artifact is None:
        why = "there is no kernel: the run did not finish, or its winner's library could not be kept"
        raise AtuneError(f"{why}; tune again")
    path = artifact.path
    if replayed and not is_cached(path):
        # Loading a library runs its code, and a journal may come from a stranger.
        raise AtuneError(f"{path} is not loaded, because it is outside the cache folder {cache_folder()}; tune again")
    if not Path(path).is_file():
        raise AtuneError(f"the winner's library {path} is gone (deleted, or on another machine); tune again")
    if replayed and (why := untrusted(path)):
        raise AtuneError(why)
    if replayed and not (is_stored(path) and artifact.symbol.isidentifier()):
        raise AtuneError(f"{path} is not loaded, because it is not the library that atune kept there; tune again")
    return artifact


def regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file to read. Raises `OSError` for any other file, because a pipe could block for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    file = os.fdopen(fd, "rb")
    if stat.S_ISREG(mode := os.fstat(fd).st_mode):
        return file
    file.close()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def read_file(path: str | os.PathLike[str], most: int = 64 << 20) -> bytes:
    """Return the content of an untrusted file. Raises `OSError` unless it is a regular file of at most `most` bytes."""
    with regular_file(path) as file:
        if len(data := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, f"it is longer than {most >> 20} MiB", os.fspath(path))
        return data


def working_folder() -> str:
    """Return the working folder; empty if the folder was removed or cannot be read."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def sys_path() -> list[str]:
    """Return `sys.path`. A relative entry is the folder in which the program has found modules, even after `chdir`."""
    finders = ((entry, sys.path_importer_cache.get(entry)) for entry in sys.path)
    return [finder.path if isinstance(finder, FileFinder) else entry for entry, finder in finders]


def make_private_folder(folder: str) -> None:
    """Create `folder` and its missing parents, so that only this user can access them. Raises `OSError`."""
    if not os.path.isdir(folder or "."):
        make_private_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


TILELANG_FOLDER = "TILELANG_CACHE_DIR"
"""Environment variable with the path of a folder that tilelang creates when tilelang is imported."""
SERVER_FOLDER = "ATUNE_SERVER_FOLDER"
"""Environment variable that gives the path of a fork server's folder to the server and its workers."""


def server_folder() -> tuple[Path, Callable[[], None]]:
    """Create a folder for a fork server, which may outlive the run. Return the folder and a function to remove it."""
    folder, lock = _make_folder("server-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()

    return folder, remove


@contextmanager
def short_path(folder: str) -> Generator[str, None, None]:
    """Yield a short path to `folder`. The path is valid inside the block. A socket's address can have only 107
    bytes."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextmanager
def whole_file(path: Path) -> Generator[str, None, None]:
    """Yield a temporary path. If the block succeeds, the file is moved to `path`, so nobody sees an incomplete file."""
    fd, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    os.close(fd)
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


@contextmanager
def run_folder() -> Generator[str, None, None]:
    """Create a private folder for a run, and remove the folder after the run."""
    folder, lock = _make_folder("run-")
    try:
        yield str(folder)
    finally:
        for _ in range(3):  # a compiler that was just killed may have made one more file
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
        lock.close()


def private_root() -> Path:
    """Return this user's folder in `$TMPDIR`, created if needed. Raises `UsageError` if other users can access it."""
    root = Path(tempfile.gettempdir()) / f"atune-{os.getuid()}"
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(
            f"{root} must be a folder that only you can use (mode 700, not a link); set TMPDIR to another folder"
        )
    return root


def _make_folder(prefix: str) -> tuple[Path, ExitStack]:
    """Create and lock a folder, after removing the unlocked folders that killed programs left.

    Meanwhile, the root folder is locked, so that no other program removes the new folder before it is locked.
    """
    root = private_root()
    with _locked(root, fcntl.LOCK_EX):
        for old in root.iterdir():
            if old.name.startswith(("run-", "server-")):
                with suppress(OSError), _locked(old):
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        return folder, _locked(folder)


def _locked(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> ExitStack:
    """Lock a folder until the stack closes or the process ends. By default, raises `OSError` for a locked folder."""
    with ExitStack() as stack:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        fcntl.flock(fd, how)
        return stack.pop_all()


def made_folder(*parts: str) -> str:
    """Create the folder whose path consists of `parts`, and its parents. Returns its path."""
    path = os.path.join(*parts)
    os.makedirs(path, exist_ok=True)
    return path
