"""Reading a journal: whole lines, checked one by one. Data only; reading executes nothing.

A line is ``{"crc":"xxxxxxxx","event":{…}}``; crc is the CRC-32, in hex, of the event's bytes as they stand there.
`docs/journal.md` describes the format for other readers.
"""

from __future__ import annotations

import errno
import lzma
import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from atune.errors import JournalError
from atune.journal.events import (
    SCHEMA,
    AnyEvent,
    ArtifactBuilt,
    CandidateAliased,
    CandidateProposed,
    RunStarted,
    decode,
)

_XZ = b"\xfd7zXZ\x00"
"""The first bytes of a file that xz compressed."""


class NotWhole(Exception):
    """A compressed file is damaged, or ends too early."""


def is_compressed(path: str) -> bool:
    """Tell whether the file at `path` is compressed by xz. Raises `OSError`."""
    with open(path, "rb") as file:
        return file.read(len(_XZ)) == _XZ


@contextmanager
def unpacked(path: str) -> Generator[IO[bytes], None, None]:
    """Open the file at `path` to read what it holds, unpacked. Raises `OSError`, and while it is read `NotWhole`."""
    with lzma.open(path, "rb") if is_compressed(path) else open(path, "rb") as file:
        try:
            yield file
        except (EOFError, lzma.LZMAError) as error:
            raise NotWhole(f"the xz file is damaged or ends too early: {error}") from error


MAX_LINE_BYTES = 8 * 1024 * 1024
"""A longer line is refused. No event is that large, and a decoded line takes many times its size in memory."""
MAX_DEPTH = 64
"""Deeper nesting is refused: no event needs it, and code that walks a value would run out of stack."""


class _CheckedLine(msgspec.Struct, forbid_unknown_fields=True):
    crc: str
    event: msgspec.Raw


class _Header(msgspec.Struct, tag_field="event", tag="run_started"):
    schema: int


_read_line = msgspec.json.Decoder(_CheckedLine)


class JournalReader:
    """Iterates over the events of the journal at `path`, from its header on.

    After the iteration `torn` tells whether a half-written last line was omitted, `torn_bytes` how long it is, and
    `whole_bytes` where it starts. Raises `JournalError` if the file cannot be read, is no journal, or is from a newer
    atune. It also does if the file is damaged before its last line.

    `salvage`: leave damaged and missing lines out instead, and with them events about candidates whose proposal is
    lost; `lost` then has a sentence on each. The header must be whole.
    """

    def __init__(self, path: str | Path, *, salvage: bool = False) -> None:
        self.path = str(path)
        self.salvage = salvage
        self.torn = False
        self.torn_bytes = self.whole_bytes = 0
        self.lost: list[str] = []

    def __iter__(self) -> Iterator[AnyEvent]:
        self.torn, self.torn_bytes, self.whole_bytes, self.lost = False, 0, 0, []
        events = self._lines()
        try:
            yield from self._known(events) if self.salvage else events
        except OSError as error:
            raise cannot("read", self.path, error) from error
        except NotWhole as error:
            raise JournalError(f"{self.path}: {error}") from error
        if not self.whole_bytes:
            why = "its only line is incomplete" if self.torn else "it is empty"
            raise JournalError(f"{self.path} is no journal of atune: {why}")

    def _lines(self) -> Iterator[AnyEvent]:
        """Yield the events of whole lines."""
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise JournalError(f"{self.path} is no journal: it is not a regular file")
        with unpacked(self.path) as file:
            number, expected = 0, 0
            line = file.readline(MAX_LINE_BYTES + 1)
            if len(line) > MAX_LINE_BYTES:
                raise self._too_long(1)
            while line:
                number += 1
                following = file.readline(MAX_LINE_BYTES + 1)
                if len(following) > MAX_LINE_BYTES:
                    raise self._too_long(number + 1)
                body = _body(line)
                if body is None or not line.endswith(b"\n"):
                    if not following:
                        self.torn, self.torn_bytes = True, len(line)
                        break
                    if not self.salvage or number == 1:
                        raise self._damaged(number)
                    self.lost.append(f"line {number} is damaged and left out ({len(line)} bytes)")
                else:
                    event = self._event(number, body, expected, _too_deep(line))
                    if event is not None:
                        expected = event.seq + 1
                        yield event
                    self.whole_bytes += len(line)
                line = following

    def _known(self, events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
        """Omit events about candidates whose proposal is lost, because their configuration is unknown."""
        proposed: set[int] = set()
        for event in events:
            if isinstance(event, CandidateProposed):
                proposed.add(event.index)
            if isinstance(event, ArtifactBuilt):
                known = tuple(index for index in event.indices if index in proposed)
                if known:
                    yield msgspec.structs.replace(event, indices=known)
                continue
            index: int | None = getattr(event, "index", None)
            other = event.same_as if isinstance(event, CandidateAliased) else index
            if index is None or {index, other} <= proposed:
                yield event
            else:
                self.lost.append(f"event {event.seq} is left out: candidate {index}'s configuration is lost")

    def _too_long(self, number: int) -> JournalError:
        return JournalError(
            f"{self.path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; it is no journal of atune"
        )

    def _event(self, number: int, body: msgspec.Raw, expected: int, too_deep: bool) -> AnyEvent | None:
        """Return the event of a whole line; None where salvage leaves it out."""
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
            if self.salvage and number > 1:
                self.lost.append(f"line {number} is no event that this atune knows, and left out")
                return None
            raise JournalError(f"{self.path}, line {number}: no event that this atune knows ({error})") from error
        if event.seq == expected and (number == 1) == (type(event) is RunStarted):
            return event
        where = f"{self.path}, line {number}"
        if (number == 1) != isinstance(event, RunStarted) and (number == 1 or event.seq == expected):
            raise JournalError(f"{where}: the header must be the first line, and stand only there")
        if self.salvage and event.seq > expected and number > 1:
            self.lost.append(f"before line {number}: {event.seq - expected} events are missing")
            return event
        if self.salvage:
            self.lost.append(f"line {number}: event {event.seq} came before, and is left out")
            return None
        raise JournalError(
            f"{where}: event {event.seq} stands where {expected} belongs; lines are missing or were moved"
        )

    def _damaged(self, number: int) -> JournalError:
        if number == 1:
            return JournalError(f"{self.path}, line 1: no journal of atune, or a damaged one")
        return JournalError(
            f"{self.path}, line {number}: damaged, it does not match its checksum; the {number - 1} lines before it "
            "are whole, and `atune replay --salvage` skips damaged lines"
        )


def read(path: str | Path) -> list[AnyEvent]:
    """Return the events of the journal at `path`, a torn tail left out. Raises `JournalError` as `JournalReader`."""
    return list(JournalReader(path))


def is_journal(path: str | Path) -> bool:
    """Tell whether the file at `path` begins as journals do, whole or damaged. Raises `OSError`."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


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
    depth, quoted, escaped = 0, False, False
    for byte in text:
        if quoted:
            quoted, escaped = escaped or byte != 0x22, not escaped and byte == 0x5C
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


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


def cannot(doing: str, path: str, error: OSError) -> JournalError:
    """Return the error for an `OSError`: the reason, and what to do."""
    return JournalError(
        f"cannot {doing} the journal {path}: {_ADVICE.get(error.errno or 0, error.strerror or str(error))}"
    )
