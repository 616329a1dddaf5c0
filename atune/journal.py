"""The journal: a run's events, one checksummed line each. Data only; reading one executes nothing.

A line is ``{"crc":"xxxxxxxx","event":{…}}``; crc is the CRC-32, in hex, of the event's bytes as they stand there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import msgspec

from atune.errors import JournalError
from atune.events import SCHEMA, AnyEvent, Event, RunStarted, decode, encode

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is refused: no event is that large, and a reader must not fill the memory."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    crc: str
    event: msgspec.Raw


class _Header(msgspec.Struct, tag_field="event", tag="run_started"):
    schema: int


_read_line = msgspec.json.Decoder(_Line)


class Journal:
    """The one writer of a journal, which it holds a lock on; the lock ends with its process, however that dies.

    Make one with `create` or `reopen`. Usable as a context manager.
    """

    def __init__(self, path: str, fd: int, size: int, next_seq: int, *, remove_if_empty: bool = False) -> None:
        self.path = path
        self._fd = fd
        self._size = size
        self._next_seq = next_seq
        self._remove_if_empty = remove_if_empty
        self._written = self._synced = 0
        self._syncing: anyio.Event | None = None
        self._broken: JournalError | None = None

    @classmethod
    def create(cls, path: str | Path) -> Journal:
        """Start a new journal, readable by its owner alone; missing folders are made, private too.

        Raises `JournalError` where `path` cannot be written, holds something already, or has another writer.
        """
        path = str(path)
        try:
            _make_folder(os.path.dirname(os.path.abspath(path)))
        except OSError as error:
            raise _cannot("create the folder of", path, error) from error
        existed = os.path.lexists(path)
        fd = _open_locked(path, os.O_CREAT)
        if os.fstat(fd).st_size:
            os.close(fd)
            raise JournalError(f"the journal {path} exists and is not empty: give another path, or remove it first")
        _sync_folder(path)
        return cls(path, fd, 0, 0, remove_if_empty=not existed)

    @classmethod
    def reopen(cls, path: str | Path) -> tuple[Journal, list[AnyEvent]]:
        """Open a journal to go on with it: return it with its events. A torn tail is cut off.

        Raises `JournalError` as `create` and `read` do.
        """
        path = str(path)
        fd = _open_locked(path, 0)
        try:
            reader = JournalReader(path)
            events = list(reader)
            os.ftruncate(fd, reader.whole_bytes)
        except OSError as error:
            os.close(fd)
            raise _cannot("write", path, error) from error
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, reader.whole_bytes, len(events)), events

    def append(self, event: Event) -> None:
        """Write `event` as one whole line. It survives this process at once, and the machine after `sync`.

        Raises `JournalError` where it cannot be written; what stands there already stays whole.
        """
        if self._broken is not None:
            raise self._broken
        if event.seq != self._next_seq:
            raise ValueError(f"event {event.seq} out of turn: the journal's next is {self._next_seq}")
        body = encode(event)
        line = b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(body), body)
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError as error:
            self._break("write", error)
        self._next_seq += 1
        self._size += len(line)
        self._written += 1

    async def sync(self) -> None:
        """Return once everything appended so far is on the disk. Callers that come together share one sync.

        The sync runs in a thread; cancelling a caller leaves it to end by itself. Raises `JournalError` where it fails.
        """
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
                await anyio.to_thread.run_sync(os.fsync, self._fd, abandon_on_cancel=True)
                self._synced = max(self._synced, covers)
            except OSError as error:
                # Sticky: after a failed fsync Linux drops the dirty pages, and the next fsync would wrongly succeed.
                self._break("sync", error)
            finally:
                self._syncing = None
                done.set()

    def close(self) -> None:
        """Let go of the file and its lock. A file that was made here and got no event is removed. Twice is fine."""
        if self._fd < 0:
            return
        if self._remove_if_empty and self._size == 0:
            try:
                os.unlink(self.path)
            except OSError:
                pass
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _break(self, doing: str, error: OSError) -> None:
        if self._fd >= 0:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                pass  # the torn line is then cut off by the next reader
        self._broken = _cannot(doing, self.path, error)
        raise self._broken from error


class JournalReader:
    """Iterates over the events of the journal at `path`, from its header on.

    After the iteration `torn` tells whether a last, half-written line was left out, and `whole_bytes` where it starts.
    Raises `JournalError` where the file cannot be read, is no journal or one of a newer atune, or is damaged before
    its last line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.torn = False
        self.whole_bytes = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        self.torn, self.whole_bytes = False, 0
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise JournalError(f"{self.path} is no journal: it is not a regular file")
            with open(self.path, "rb") as file:
                number = 0
                line = file.readline(MAX_LINE_BYTES + 1)
                while line:
                    number += 1
                    if len(line) > MAX_LINE_BYTES:
                        raise JournalError(
                            f"{self.path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; no journal of atune"
                        )
                    following = file.readline(MAX_LINE_BYTES + 1)
                    body = self._body(line)
                    if body is None or not line.endswith(b"\n"):
                        if following:
                            raise self._damaged(number)
                        self.torn = True
                        break
                    yield self._event(number, body)
                    self.whole_bytes += len(line)
                    line = following
        except OSError as error:
            raise _cannot("read", self.path, error) from error
        if not self.whole_bytes:
            why = "its only line is incomplete" if self.torn else "it is empty"
            raise JournalError(f"{self.path} is no journal of atune: {why}")

    def _body(self, line: bytes) -> msgspec.Raw | None:
        """Return the event's bytes; None where the line is not as it was written."""
        try:
            parsed = _read_line.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        return parsed.event if f"{zlib.crc32(parsed.event):08x}" == parsed.crc else None

    def _event(self, number: int, body: msgspec.Raw) -> AnyEvent:
        where = f"{self.path}, line {number}"
        try:
            if number == 1:
                schema = msgspec.json.decode(body, type=_Header).schema
                if schema > SCHEMA:
                    raise JournalError(
                        f"{self.path} is from a newer atune (schema {schema}; this one reads {SCHEMA}): update atune"
                    )
            event = decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise JournalError(f"{where}: no event that this atune knows ({error})") from error
        if event.seq != number - 1:
            raise JournalError(
                f"{where}: event {event.seq} stands where {number - 1} belongs; lines are missing or were moved"
            )
        if isinstance(event, RunStarted) != (number == 1):
            raise JournalError(f"{where}: the header must be the first line, and stand only there")
        return event

    def _damaged(self, number: int) -> JournalError:
        if number == 1:
            return JournalError(f"{self.path}, line 1: no journal of atune, or a damaged one")
        return JournalError(
            f"{self.path}, line {number}: damaged, it does not match its checksum; the lines before it are whole"
        )


def read(path: str | Path) -> list[AnyEvent]:
    """Return the events of the journal at `path`, a torn tail left out. Raises `JournalError` as `JournalReader`."""
    return list(JournalReader(path))


def _make_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        _make_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def _sync_folder(path: str) -> None:
    # Without it the file's name may be lost with the power although its content was synced.
    try:
        fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # not every file system can
    finally:
        os.close(fd)


def _open_locked(path: str, flags: int) -> int:
    try:
        # Not O_WRONLY: opening a pipe to write would wait for its reader.
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise _cannot("write", path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise JournalError(f"the journal {path} must be a regular file: give another path")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise JournalError(
            f"the journal {path} is being written by another run: wait for it, or give another path"
        ) from error
    except OSError as error:
        os.close(fd)
        raise _cannot("lock", path, error) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


_ADVICE = {
    errno.EISDIR: "it is a folder: give a file in it",
    errno.ENOTDIR: "a part of the path is a file: give another path",
    errno.EEXIST: "a part of the path is a file: give another path",
    errno.ENOENT: "there is no such file or folder",
    errno.EACCES: "no permission: give a path that you may write",
    errno.EPERM: "no permission: give a path that you may write",
    errno.EROFS: "the file system is read-only: give another path",
    errno.ENOSPC: "the disk is full: free some space or give another path",
    errno.EDQUOT: "your disk quota is used up: free some space or give another path",
    errno.EFBIG: "the file is larger than the limit of this process (ulimit -f)",
    errno.ENAMETOOLONG: "the name is too long: give a shorter one",
    errno.ENOLCK: "the file system has no locks: give a path on a local disk",
    errno.EOPNOTSUPP: "the file system has no locks: give a path on a local disk",
}


def _cannot(doing: str, path: str, error: OSError) -> JournalError:
    return JournalError(
        f"cannot {doing} the journal {path}: {_ADVICE.get(error.errno or 0, error.strerror or str(error))}"
    )
