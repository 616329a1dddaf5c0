"""Write journals. A writer locks its journal, appends complete lines, and syncs groups of lines in a thread."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from atune.errors import AtuneError, JournalError, MachineError, UsageError
from atune.journal.events import AnyEvent, Event, encode
from atune.journal.reader import MAX_LINE_BYTES, JournalReader, cannot, is_journal
from atune.model.folders import cache_folder, make_private_folder, regular_file, whole_file


def line_of(event: Event) -> bytes:
    body = encode(event)
    return b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(body), body)


class Journal:
    """A journal that this process writes. The journal's lock keeps other writers out until this process ends.

    Make a `Journal` with `create`, `reopen` or `start`, and use it as a context manager.
    """

    def __init__(self, path: str, fd: int, size: int, next_seq: int, *, remove_if_empty: bool = False) -> None:
        self.path = path
        self._fd = fd
        self._size = size
        self._next_seq = next_seq
        self._remove_if_empty = remove_if_empty
        self.torn_bytes = 0
        """The length of an incomplete last line, which the next `append` removes."""
        self._written = self._synced = 0
        self._syncing: anyio.Event | None = None
        self._broken: AtuneError | None = None

    @classmethod
    def create(cls, path: str | Path) -> Journal:
        """Start a new journal that only its owner can read. Missing folders inside the cache folder are created.

        Raises `JournalError` if `path` cannot be written or its folder is missing, if the file at `path` is not empty,
        or if another run is writing this file.
        """
        path = str(path)
        folder = os.path.dirname(os.path.abspath(path))
        if Path(folder).is_relative_to(cache_folder()):
            try:
                make_private_folder(folder)
            except OSError as error:
                do = "set ATUNE_CACHE_DIR to a folder that you may write"
                raise cannot("create the folder of", path, error, do) from error
        elif not os.path.exists(folder):
            raise JournalError(f"cannot write the journal {path}: there is no folder {folder}; create it first")
        fd, made = _open_locked(path, create=True)
        if os.fstat(fd).st_size:
            os.close(fd)
            raise JournalError(f"the journal {path} exists and is not empty: give another path, or remove it first")
        _sync_folder(path)
        return cls(path, fd, 0, 0, remove_if_empty=made)

    @classmethod
    def reopen(cls, path: str | Path) -> tuple[Journal, list[AnyEvent]]:
        """Open a journal to continue it, and return the journal and its events. The first `append` removes an
        incomplete last line. Raises `JournalError` as `create` and `read` do."""
        path = str(path)
        fd, _ = _open_locked(path)
        try:
            reader = JournalReader(path)
            events = list(reader)
        except BaseException:
            os.close(fd)
            raise
        journal = cls(path, fd, reader.whole_bytes, len(events))
        journal.torn_bytes = reader.torn_bytes
        return journal, events

    @classmethod
    def start(cls, path: str | Path) -> tuple[Journal, list[AnyEvent]]:
        """Reopen the journal at `path`, or create it if it is missing or empty. Return the journal and its events."""
        with suppress(OSError):
            if os.stat(path).st_size or not os.path.isfile(path):
                return cls.reopen(path)
        return cls.create(path), []

    def append(self, event: Event) -> None:
        """Append a line for `event`. The line survives the end of this process, and after `sync` also a machine crash.

        Raises `MachineError` if the line cannot be written, or `JournalError` if it is too long. Earlier lines stay.
        """
        if self._broken is not None:
            raise self._broken
        if event.seq != self._next_seq:
            raise ValueError(f"event {event.seq} is out of order: the journal's next event is {self._next_seq}")
        line = line_of(event)
        if len(line) > MAX_LINE_BYTES:
            event_bytes = f"{type(event).__name__} has {len(line)} bytes, but a line may have only {MAX_LINE_BYTES}"
            raise JournalError(f"cannot write the journal {self.path}: {event_bytes}")
        done = 0
        try:
            if self.torn_bytes:  # not on opening, which must not change the journal
                os.ftruncate(self._fd, self._size)
                self.torn_bytes = 0
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError as error:
            self._break("write", error)
        self._next_seq += 1
        self._size += len(line)
        self._written += 1

    async def sync(self) -> None:
        """Wait until all appended events are on the disk. Concurrent callers share a sync. The sync runs in a thread,
        and is completed even if the caller is cancelled. Raises as `append` does."""
        wanted = self._written
        while self._synced < wanted:
            if self._broken is not None:
                raise self._broken
            if self._syncing is not None:
                await self._syncing.wait()
                continue
            self._syncing = done = anyio.Event()
            covers = self._written
            try:
                await anyio.to_thread.run_sync(_sync_file, self._fd, abandon_on_cancel=True)
                self._synced = max(self._synced, covers)
            except OSError as error:
                # No second fsync: after a failed fsync Linux drops the dirty pages, so a second would wrongly succeed.
                self._break("sync", error)
            finally:
                self._syncing = None
                done.set()

    def close(self) -> None:
        """Close the file and release the lock. Remove the file if `create` made it and it has no event. Idempotent."""
        if self._fd < 0:
            return
        if self._remove_if_empty and self._size == 0:
            with suppress(OSError):
                os.unlink(self.path)
        # Closing is not enough: an abandoned sync may still run in its thread, and would hold the lock until its end.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _break(self, doing: str, error: OSError) -> None:
        if self._fd >= 0:
            with suppress(OSError):  # the next reader then cuts off the torn line
                os.ftruncate(self._fd, self._size)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        do = f"free some space, and continue with atune resume {shlex.quote(self.path)}" if full else ""
        self._broken = MachineError(str(cannot(doing, self.path, error, do)))  # not the caller's mistake
        raise self._broken from error


def _sync_file(fd: int) -> None:
    os.fsync(fd)
    if os.fstat(fd).st_nlink == 0:
        # Writes to a removed file succeed, but the data is lost.
        raise OSError(errno.ESTALE, "it was removed, or its file system went away, while the run wrote it")


def _sync_folder(path: str) -> None:
    # Without this, a power failure may lose the file's name although its content was synced.
    with suppress(OSError):  # some file systems cannot sync a folder
        fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _open_locked(path: str, *, create: bool = False) -> tuple[int, bool]:
    """Open and lock the file at `path`. Return the file's descriptor, and whether this call created the file.

    If another writer removes the empty file between opening and locking, `path` is opened again.
    """
    # Not O_WRONLY, because opening a pipe to write would wait for its reader.
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    while True:
        made = create and not os.path.lexists(path)
        through_link = create and os.path.islink(path)  # this creates the link's target, which is not removed later
        new = os.O_CREAT | os.O_EXCL if made else os.O_CREAT if through_link else 0
        try:
            fd = os.open(path, flags | new, 0o600)
        except OSError as error:
            if isinstance(error, FileExistsError if made else FileNotFoundError) and create and not through_link:
                continue  # another writer has just created or removed the file
            raise cannot("write", path, error) from error
        _lock(fd, path)
        if os.fstat(fd).st_nlink:
            return fd, made
        os.close(fd)


def _lock(fd: int, path: str) -> None:
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise JournalError(f"the journal {path} must be a regular file: give another path")
        while True:
            with suppress(BlockingIOError):
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises only for a writer's lock, not for `is_written`
    except BaseException as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            busy = f"another run is writing the journal {path}: wait until it ends, or give another path"
            raise JournalError(busy) from error
        if isinstance(error, OSError):
            raise cannot("lock", path, error) from error
        raise


def is_written(path: Path) -> bool:
    """Tell whether a run holds the lock on `path`, which is a journal or a set's lock file. Raises `OSError`."""
    try:
        with regular_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    return False


# ---- files written as a whole


def write_journal(output: str, events: Iterable[AnyEvent]) -> None:
    """Write a new journal, completely or not at all. Raises `JournalError` if `output` exists or cannot be written."""
    Journal.create(output).close()  # if a file exists, raises before anything is written
    try:
        with whole_file(Path(os.path.realpath(output))) as part:
            _write_synced(part, map(line_of, events))
            Journal.create(output).close()  # once more, because writing may have taken long
    except OSError as error:
        raise cannot("write", output, error) from error


def write_output(path: str, data: bytes) -> None:
    """Write `data` to `path`, completely or not at all. A journal is never overwritten.

    An existing file keeps its mode, and the umask decides the mode of a new file. A special file, such as a pipe, is
    written to directly. Raises `UsageError` if `path` is a journal or a Python source file, or cannot be written.
    """
    try:
        real = os.path.realpath(path)  # a symbolic link stays a link
        mode = os.stat(real).st_mode if os.path.exists(real) else None
        if mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            Path(path).write_bytes(data)
            return
        if is_journal(real):
            raise UsageError(f"{path} is a journal, which is never overwritten: give another file")
        if mode is not None and real.endswith(".py"):
            raise UsageError(f"{path} is a Python source file, which is not overwritten: give another file")
        if mode is None:
            status = Path("/proc/self/status").read_text()  # os.umask would change the umask for all threads
            mode = 0o666 & ~int(status.partition("\nUmask:")[2].split()[0], 8)
        with whole_file(Path(real)) as part:
            _write_synced(part, [data])
            os.chmod(part, stat.S_IMODE(mode))
    except OSError as error:
        why, missing = error.strerror or error, isinstance(error, FileNotFoundError) and error.filename
        if missing:  # without a name, the working directory is gone
            why = f"there is no folder {os.path.dirname(missing)}; create it first"
        raise UsageError(f"cannot write {path}: {why}") from error


def _write_synced(path: str, parts: Iterable[bytes]) -> None:
    with open(path, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
