"""Reading a journal: whole lines, checked one by one. Data only; reading executes nothing.

A line is ``{"crc":"xxxxxxxx","event":{…}}``; crc is the CRC-32, in hex, of the event's bytes as they stand there.
`docs/journal.md` describes the format for other readers.
"""

from __future__ import annotations

import errno
import itertools
import lzma
import os
import re
import stat
import zlib
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
import msgspec

from atune.errors import JournalError
from atune.journal.events import SCHEMA, AnyEvent, RunFinished, RunInterrupted, RunStarted, decode
from atune.journal.result import Result

_XZ = b"\xfd7zXZ\x00"
"""The first bytes of a file that xz compressed."""


def is_compressed(path: str) -> bool:
    """Tell whether the file at `path` is compressed by xz. Raises `OSError`."""
    with open(path, "rb") as file:
        return file.read(len(_XZ)) == _XZ


@contextmanager
def unpacked(path: str) -> Generator[IO[bytes], None, None]:
    """Open the file at `path` to read what it holds, unpacked.

    Raises `OSError`, and `JournalError` if the compressed file turns out to be damaged.
    """
    with lzma.open(path, "rb") if is_compressed(path) else open(path, "rb") as file:
        try:
            yield file
        except (EOFError, lzma.LZMAError) as error:
            raise JournalError(f"{path}: the xz file is damaged or ends too early: {error}") from error


MAX_LINE_BYTES = 8 * 1024 * 1024
"""A longer line is refused. No event is that large, and a decoded line takes many times its size in memory."""
MAX_DEPTH = 64
"""Deeper nesting is refused: no event needs it, and code that walks a value would run out of stack."""


class _CheckedLine(msgspec.Struct, forbid_unknown_fields=True):
    crc: str
    event: msgspec.Raw


class _Header(msgspec.Struct):
    schema: int = 0


_read_line = msgspec.json.Decoder(_CheckedLine)


class JournalReader:
    """Iterates over the events of the journal at `path`, from its header on.

    After the iteration `torn_bytes` is the length of a half-written last line, which is omitted, and `whole_bytes` that
    of all before it. Raises `JournalError` if the file cannot be read, is no journal, is from a newer
    atune, or is damaged before its last line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.torn_bytes = self.whole_bytes = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        self.torn_bytes = self.whole_bytes = 0
        try:
            yield from self._events()
        except OSError as error:
            raise cannot("read", self.path, error) from error
        if not self.whole_bytes:
            why = "its only line is incomplete" if self.torn_bytes else "it is empty"
            raise JournalError(f"{self.path} is no journal of atune: {why}")

    def _events(self) -> Iterator[AnyEvent]:
        """Yield the events of whole lines."""
        if not stat.S_ISREG(mode := os.stat(self.path).st_mode):
            why = "it is a folder: give a journal in it" if stat.S_ISDIR(mode) else "it is not a regular file"
            if inside := sorted(Path(self.path).glob("*.jsonl*")):
                why += f", such as {inside[0]}"
            raise JournalError(f"{self.path} is no journal: {why}")
        with unpacked(self.path) as file:
            number, line = 0, self._line(file, 1)
            while line:
                number += 1
                following = self._line(file, number + 1)
                body = _body(line)
                if body is None or not line.endswith(b"\n"):
                    if following:
                        raise self._damaged(number)
                    self.torn_bytes = len(line)
                    break
                yield self._event(number, body, _too_deep(line))
                self.whole_bytes += len(line)
                line = following

    def _line(self, file: IO[bytes], number: int) -> bytes:
        line = file.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise JournalError(
                f"{self.path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; it is no journal of atune"
            )
        return line

    def _event(self, number: int, body: msgspec.Raw, too_deep: bool) -> AnyEvent:
        """Return the event of a whole line."""
        where = f"{self.path}, line {number}"
        try:
            if too_deep:
                raise msgspec.DecodeError(f"nested deeper than {MAX_DEPTH}")
            if number == 1:
                schema = msgspec.json.decode(body, type=_Header).schema
                if schema > SCHEMA:
                    raise JournalError(
                        f"{self.path} was written by a newer atune (schema {schema}; this one reads {SCHEMA}): "
                        "update atune"
                    )
            event = decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise JournalError(f"{where}: no event that this atune knows ({error})") from error
        if event.seq != number - 1:
            raise JournalError(
                f"{where}: event {event.seq} stands where {number - 1} belongs; lines are missing or were moved"
                f"{_kept(number)}"
            )
        if isinstance(event, RunStarted) != (number == 1):
            raise JournalError(f"{where}: the header must be the first line, and stand only there")
        return event

    def _damaged(self, number: int) -> JournalError:
        if number == 1:
            return JournalError(f"{self.path}, line 1: no journal of atune, or a damaged one")
        return JournalError(f"{self.path}, line {number}: damaged, it does not match its checksum{_kept(number)}")


def _kept(number: int) -> str:
    """Say how to keep the lines before line `number`."""
    if number == 1:
        return ""
    return f"; the lines before it are whole, and `head -n {number - 1}` keeps them as a journal of their own"


def read(path: str | Path) -> list[AnyEvent]:
    """Return the events of the journal at `path`, a torn tail left out. Raises `JournalError` as `JournalReader`."""
    return list(JournalReader(path))


def last_event(path: Path) -> AnyEvent | None:
    """Return the last event of the journal at `path`; None where its last line is incomplete. Raises `OSError`."""
    with unpacked(str(path)) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    return parse_line(lines[-1]) if lines else None


_TAIL_BYTES = 1024 * 1024
"""Bytes in which a journal's last event is looked for."""


def is_journal(path: str | Path) -> bool:
    """Tell whether the file at `path` begins as journals do, whole, damaged or compressed. Raises `OSError`."""
    if not os.path.isfile(path):
        return False
    with suppress(JournalError), unpacked(str(path)) as file:
        return file.read(len(_BEGINNING)) == _BEGINNING
    return False  # another file that xz compressed, and that is damaged


_BEGINNING = b'{"crc":"'


def parse_line(line: bytes) -> AnyEvent | None:
    """Return the event of one whole line, its newline included; None where it is half-written, damaged or unknown."""
    body = _body(line) if line.endswith(b"\n") else None
    try:
        return None if body is None or _too_deep(line) else decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _body(line: bytes) -> msgspec.Raw | None:
    """Return the event's bytes; None if the line is damaged."""
    try:
        parsed = _read_line.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return parsed.event if f"{zlib.crc32(parsed.event):08x}" == parsed.crc else None


def _too_deep(text: bytes) -> bool:
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = re.sub(rb'"(?:[^"\\]|\\.)*"|[^][{}"]', b"", text)
    return max(itertools.accumulate(1 if one in b"[{" else -1 for one in brackets)) > MAX_DEPTH


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
    errno.EMFILE: "too many files are open in this process: raise the limit (ulimit -n 1024)",
    errno.ESTALE: "it was removed, or its file system went away, while the run wrote it",
}


def cannot(doing: str, path: str, error: OSError, do: str = "") -> JournalError:
    """Return the error for an `OSError`: the reason, and what to do: `do`, or what the reason says."""
    why = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    if do:
        why = f"{why.partition(':')[0]}: {do}"
    return JournalError(f"cannot {doing} the journal {path}: {why}")


POLL_S = 0.5
"""Seconds between looks at a journal that another process writes."""


def replay(path: str | Path) -> Result:
    """Return the result that the journal at `path` holds, also of a run that was interrupted or still goes on.

    Imports and executes nothing that the journal names. Raises `JournalError` where it cannot be read or is damaged
    before its last line.
    """
    return Result.from_events(JournalReader(path), Path(path), replayed=True)


async def follow(path: str | Path) -> AsyncIterator[AnyEvent | None]:
    """Yield the events of a journal that another process writes, also on another machine, until its run ends.

    After what is there, and each time nothing new came for `POLL_S`, yields None. Looks at the file again and again
    and needs no notification, so that shared file systems work. A compressed journal grows no more, and ends with its
    last event. Raises `JournalError` where the journal is damaged.
    """
    try:
        compressed = is_compressed(str(path))
    except OSError as error:
        raise cannot("read", str(path), error) from error
    if compressed:
        for recorded in JournalReader(path):
            yield recorded
        return
    position = expected = 0
    while True:
        try:
            with open(path, "rb") as file:  # anew each time: on NFS, opening is what asks the server
                file.seek(position)
                while (line := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
                    event = parse_line(line)
                    if event is None or event.seq != expected or isinstance(event, RunStarted) != (expected == 0):
                        break  # damaged, or a torn end that the next part cuts off: the reader tells which
                    position += len(line)
                    expected += 1
                    yield event
                    ended = isinstance(event, RunFinished | RunInterrupted)
                    if ended and not file.peek(1):
                        return
        except OSError as error:
            raise cannot("read", str(path), error) from error
        if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
            for _ in JournalReader(path):  # raises where the damage is before the last line
                pass
        yield None
        await anyio.sleep(POLL_S)
