"""Folders of atune: in the user's cache, and private ones of runs and fork servers below `$TMPDIR/atune-UID`.

Folders of killed programs are removed.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Literal

from atune.errors import AtuneError, UsageError, warn_caller
from atune.model.artifact import Artifact

CACHE_VARIABLE = "ATUNE_CACHE_DIR"
ARTIFACTS = "artifacts"
chosen_folder: ContextVar[Path | None] = ContextVar("atune_cache_folder", default=None)
"""The folder of the innermost `cache_folder_at`, or None outside. New threads do not inherit it."""
_named: set[Path] = set()
"""Folders that this program chose. It may load the files that it stored there."""


@contextmanager
def cache_folder_at(folder: Path | None) -> Generator[None, None, None]:
    """Make atune keep its files in `folder` inside the block, for this thread or task and those it starts."""
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
    """Return atune's folder in the user's cache. Creates nothing.

    It is ``$ATUNE_CACHE_DIR`` if that is an absolute path, else ``$XDG_CACHE_HOME/atune``, or ``~/.cache/atune``.
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
    """Warn once that a relative cache folder does not count."""
    warn_caller(f"{CACHE_VARIABLE}={relative} is ignored: give an absolute path", RuntimeWarning)


def artifacts_folder() -> Path:
    """Return the folder of kept libraries. Creates nothing."""
    return cache_folder() / ARTIFACTS


def is_cached(path: str) -> bool:
    """Tell whether `path` is in the cache folder, or in one that this program chose."""
    real = Path(path).resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in (cache_folder(), *_named))


def untrusted(path: str | os.PathLike[str], so: str = "no library is kept there, or loaded from there") -> str:
    """Return why code in `path` may be another user's: whose it is, or who may write it; empty where that is this user.

    The same holds for each folder above it, up to the cache's own. Root may do everything anyway. `so`: what follows.
    """
    real, roots = Path(path).resolve(), [folder.resolve() for folder in (cache_folder(), *_named)]
    inside = any(real.is_relative_to(root) for root in roots)
    for one in (real, *real.parents) if inside else (real,):
        with suppress(FileNotFoundError, NotADirectoryError):  # what is made there will be this user's
            status = one.stat()
            if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
                whose = "others may write" if status.st_mode & 0o022 else "another user owns"
                own = f"set {CACHE_VARIABLE} to a folder that is yours alone"
                return f"{whose} {one}, so that {so}: {own}"
        if one in roots:
            break
    return ""


def store_file(folder: Path, kind: Literal["codes", "lowered"], key: str) -> Path:
    """Return the path of a record in the artifact store `folder`.

    ``codes``: the library with the code `key`. ``lowered``: the lowering result of the kernel `key`.
    """
    return folder / kind / f"{key}.json"


def is_stored(path: str) -> bool:
    """Tell whether `path` is a stored library whose content matches its name, and not a link out of its folder."""
    real = Path(path).resolve()
    if real.parent not in {(folder / ARTIFACTS).resolve() for folder in (cache_folder(), *_named)}:
        return False
    try:
        return f"{hashlib.sha256(real.read_bytes()).hexdigest()}.so" == real.name
    except OSError:
        return False


def loadable(artifact: Artifact | None, *, replayed: bool) -> Artifact:
    """Return the library of a winner, once it is known to be there and to be safe to load.

    `replayed`: its path comes from a file, and only a library of the cache folder is loaded. Raises `AtuneError`.
    """
    if artifact is None:
        why = "there is no kernel: the run did not finish, or its winner's library could not be kept"
        raise AtuneError(f"{why}; tune again")
    path = artifact.path
    if replayed and not is_cached(path):
        # Loading a library runs its code, and a journal may come from a stranger.
        raise AtuneError(f"{path} is outside the cache folder {cache_folder()}, and is not loaded; tune again")
    if not Path(path).is_file():
        raise AtuneError(f"the winner's library {path} is gone (cache cleaned, or another machine's); tune again")
    if replayed and (why := untrusted(path)):
        raise AtuneError(why)
    if replayed and not (is_stored(path) and artifact.symbol.isidentifier()):
        raise AtuneError(f"{path} is not the library that was kept under this name, and is not loaded; tune again")
    return artifact


def regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read. Raises `OSError` for what is no regular file: it may have no end, or never begin."""
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
    """Return the content of a file of somebody else's. Raises `OSError` as `regular_file`, and beyond `most` bytes."""
    with regular_file(path) as file:
        if len(data := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, f"it is longer than {most >> 20} MiB", os.fspath(path))
        return data


def working_folder() -> str:
    """Return the working folder. Empty if it was removed or is not readable."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def make_private_folder(folder: str) -> None:
    """Make `folder` and its missing parents, private to the owner. Raises `OSError`."""
    if not os.path.isdir(folder):
        make_private_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


TILELANG_FOLDER = "TILELANG_CACHE_DIR"
"""tilelang's environment variable for the folder that its import makes."""
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
    with _locked(root, fcntl.LOCK_EX):
        for old in root.iterdir():
            if old.name.startswith(("run-", "server-")):
                with suppress(OSError), _locked(old):
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        return folder, _locked(folder)


def _locked(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> ExitStack:
    """Lock a folder. Raises `OSError`, unless it may wait, while another has it. The lock ends with its process."""
    with ExitStack() as stack:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        fcntl.flock(fd, how)
        return stack.pop_all()


def made_folder(*parts: str) -> str:
    """Join `parts` and make that folder, with those above it."""
    path = os.path.join(*parts)
    os.makedirs(path, exist_ok=True)
    return path
