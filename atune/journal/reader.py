"""Read journals: each line is checked, and nothing in it is executed.

A line is ``{"crc":"xxxxxxxx","event":{…}}``, where crc is the CRC-32, in hex, of the event's bytes in the line.
`docs/journal.md` describes the format for other readers.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, cast

import anyio
import msgspec

from atune.errors import JournalError
from atune.journal.events import SCHEMA, AnyEvent, Found, RunFinished, RunInterrupted, RunStarted, decode
from atune.journal.result import Result
from atune.journal.state import State, ended_by, finished, recorded_budget
from atune.model.folders import cache_folder, is_cached, regular_file

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Most bytes of a line. No event is larger, and a decoded line takes many times its size in memory."""
MAX_DEPTH = 64
"""Most levels of nesting. No event has more, and code that walks a deeper value would run out of stack."""
MAX_PARTS, MAX_VALUES = 100_000, 4_000_000
"""Most lists and objects, and most values, in a line. In memory they take up to 100 times as much as the line."""
MAX_ALL_VALUES = 12_000_000
"""Most values in a journal outside the cache folder. About 200,000 candidates have as many, in a gigabyte of memory."""


class _CheckedLine(msgspec.Struct, forbid_unknown_fields=True):
    crc: str
    event: msgspec.Raw


class _Header(msgspec.Struct):
    schema: int = 0


_read_line = msgspec.json.Decoder(_CheckedLine)


class JournalReader:
    """Iterates over the events of the journal at `path`, from its header on.

    After the iteration, `torn_bytes` is the length of a half-written last line, which is omitted. `whole_bytes` is the
    length of all lines before it. Raises `JournalError` if the file cannot be read, is not a journal, was written by a
    newer atune, or is damaged before its last line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.torn_bytes = self.whole_bytes = self._lines = self._values = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        self.whole_bytes = self._lines = self._values = 0
        yield from self.more()
        if not self.whole_bytes:
            why = "its only line is incomplete" if self.torn_bytes else "it is empty"
            raise JournalError(f"{self.path} is not a journal of atune: {why}")

    def more(self) -> Iterator[AnyEvent]:
        """Yield the events that were not read yet."""
        self.torn_bytes = 0
        try:
            with regular_file(self.path) as file:  # opened each time, because NFS asks its server on opening
                file.seek(self.whole_bytes)
                line = self._line(file)
                while line:
                    following = self._line(file) if line.endswith(b"\n") else b""
                    body = _body(line) if line.endswith(b"\n") else None
                    if body is None:
                        if following:
                            raise self.damaged(self._lines + 1)
                        self.torn_bytes = len(line)
                        break
                    event = self.event(self._lines + 1, body, unfit(line))
                    self._lines += 1
                    self._values += line.count(b",")
                    if self._values > MAX_ALL_VALUES and not is_cached(self.path):
                        raise JournalError(
                            f"{self.path} has over {MAX_ALL_VALUES:,} values, which would take more than 1 GB of "
                            f"memory: if you trust it, move it into {cache_folder()}"
                        )
                    self.whole_bytes += len(line)
                    yield event
                    line = following
        except IsADirectoryError as error:
            inside = "".join(f", such as {file}" for file in sorted(Path(self.path).glob("*.jsonl"))[:1])
            raise JournalError(f"{self.path} is not a journal, it is a folder: give a journal in it{inside}") from error
        except OSError as error:
            raise cannot("read", self.path, error) from error

    def _line(self, file: IO[bytes]) -> bytes:
        line = file.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise JournalError(
                f"{self.path} is not a journal of atune: a line is longer than {MAX_LINE_BYTES >> 20} MiB"
            )
        return line

    def event(self, number: int, body: msgspec.Raw, unfit: str) -> AnyEvent:
        """Return the event of a whole line. Raises `JournalError` if the line is `unfit`, or the event out of place."""
        where = f"{self.path}, line {number}"
        try:
            if unfit:
                raise msgspec.DecodeError(unfit)
            if number == 1:
                schema = msgspec.json.decode(body, type=_Header).schema
                if schema > SCHEMA:
                    raise JournalError(
                        f"{self.path} was written by a newer atune (schema {schema}; this one reads {SCHEMA}): "
                        "update atune"
                    )
            event = decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise JournalError(f"{where}: this atune does not know the event ({error})") from error
        if event.seq != number - 1:
            raise JournalError(
                f"{where}: this is event {event.seq} instead of event {number - 1}; lines are missing or were moved"
                f"{_how_to_keep(number)}"
            )
        if isinstance(event, RunStarted) != (number == 1):
            raise JournalError(f"{where}: the header must be the first line, and no other line may be a header")
        return event

    def damaged(self, number: int) -> JournalError:
        """Return the error for line `number`, which is whole but does not match its checksum."""
        damaged = "damaged, because it does not match its checksum"
        why = "this is not a journal of atune, or it is damaged" if number == 1 else damaged
        if number == 1 and self.path.endswith((".gz", ".xz", ".bz2", ".zst")):
            why = "the file is compressed: unpack it first"
        return JournalError(f"{self.path}, line {number}: {why}{_how_to_keep(number)}")


def _how_to_keep(number: int) -> str:
    """Return advice to keep the lines before line `number`."""
    if number == 1:
        return ""
    return f"; the lines before it are whole, and `head -n {number - 1}` saves them as a journal"


def read(path: str | Path) -> list[AnyEvent]:
    """Return the events of the journal at `path`, without a torn tail. Raises `JournalError` like `JournalReader`."""
    return list(JournalReader(path))


def ends(path: str | Path) -> tuple[RunStarted | None, AnyEvent | None]:
    """Return the first and the last event of the journal at `path`, without reading the others.

    A torn tail is skipped. Both are None if the first line is incomplete, and the last is None if it is damaged. Raises
    `OSError`, and `JournalError` if the first line is not a header.
    """
    reader = JournalReader(path)
    with regular_file(path) as file:
        first, size = file.readline(MAX_LINE_BYTES), file.seek(0, os.SEEK_END)
        if not first.endswith(b"\n"):
            return None, None
        for tail in _TAILS:
            file.seek(max(0, size - tail))
            last = file.read(tail)
            if last.count(b"\n") > 2 or tail >= size:
                break
    if (body := _body(first)) is None:
        raise reader.damaged(1)
    header = reader.event(1, body, unfit(first))
    *lines, torn = last.split(b"\n")
    if len(lines) > 1 and not torn and _body(lines[-1]) is None:  # even a torn line may end with a line feed
        lines.pop()
    return cast(RunStarted, header), parse_line(lines[-1] + b"\n") if lines else None


_TAILS = (1 << 14, 1 << 18, 1 << 22, 3 * MAX_LINE_BYTES)
"""Bytes at a journal's end to search for its last event. The line before it, and a torn line after it, must fit too."""


def is_journal(path: str | Path) -> bool:
    """Tell whether the file at `path` begins like a journal, whole or damaged. Raises `OSError`."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


_BEGINNING = b'{"crc":"'


def parse_line(line: bytes) -> AnyEvent | None:
    """Return the event of a line that ends with a newline; None if the line is half-written, damaged or unknown."""
    body = _body(line) if line.endswith(b"\n") else None
    try:
        return None if body is None or unfit(line) else decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _body(line: bytes) -> msgspec.Raw | None:
    """Return the event's bytes; None if the line is damaged."""
    try:
        parsed = _read_line.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return parsed.event if f"{zlib.crc32(parsed.event):08x}" == parsed.crc else None


def unfit(text: bytes) -> str:
    """Return the reason to refuse a stranger's JSON that would cost too much to decode; empty if it may be decoded."""
    opened = text.count(b"[") + text.count(b"{")
    if opened <= MAX_DEPTH and len(text) < MAX_VALUES and not _LONG.search(text):
        return ""
    bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    if _LONG.search(bare):
        return "it has an integer of 300 digits"
    if bare.count(b"[") + bare.count(b"{") > MAX_PARTS or bare.count(b",") > MAX_VALUES:
        return f"it has more than {MAX_PARTS:,} lists and objects, or {MAX_VALUES:,} values"
    brackets = bare.translate(None, _NO_BRACKETS)
    depth = max(itertools.accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)
    return f"it is nested deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else ""


_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[]{}"}))
_LONG = re.compile(rb"\d{300}")
"""An integer that no float can hold. If it has many more digits, Python does not even print it."""


_ADVICE = {
    errno.EISDIR: "it is a folder: give a file in it",
    errno.ENOTDIR: "a part of the path is a file: give another path",
    errno.EEXIST: "a part of the path is a file: give another path",
    errno.EFBIG: "the file would exceed the size limit of this process (ulimit -f)",
    errno.ENOLCK: "the file system has no locks: give a path on a local disk",
    errno.EMFILE: "too many files are open in this process: raise the limit (ulimit -n 1024)",
}


def cannot(doing: str, path: str, error: OSError, do: str = "") -> JournalError:
    """Return the error for an `OSError`: the error's reason, and advice: `do`, or the usual advice for this reason."""
    why = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    if do:
        why = f"{why.partition(':')[0]}: {do}"
    return JournalError(f"cannot {doing} the journal {path}: {why}")


POLL_S = 0.5
"""Seconds between two reads of a journal that another process writes."""


def replay(path: str | Path) -> Result:
    """Return the result of the journal at `path`, even if its run was interrupted or still goes on.

    Imports and executes nothing that the journal names. Raises `JournalError` if it cannot be read or is damaged before
    its last line.
    """
    return Result.from_events(JournalReader(path), Path(path), replayed=True)


def found_in(state: State, reason: str = "") -> Found:
    """Return the outcome of a run so far. `reason`: why the run ends now, if `state` does not say so yet."""
    result, reason = Result.of(state), reason or ended_by(state)
    best = result.best
    whole = best is not None and reason not in ("", "stopped") and not state.accepted
    if whole and state.resumed is not None and reason in ("budget", "enough"):  # the budget may not be the header's
        whole = finished(state, recorded_budget(result.header), reason)
    return Found(
        tried=result.total - result.remaining,
        whole=whole,
        winner=None if best is None else best.index,
        config=result.best_config,
        latency_ms=result.latency_ms,
        reference_ms=result.reference_ms,
        ir_digest="" if best is None else state.entry(best.index).ir_digest,
    )


async def follow(path: str | Path) -> AsyncIterator[AnyEvent | None]:
    """Yield the events of a journal that another process writes, even on another machine, until its run ends.

    Yields None after the events that are already there, and after each `POLL_S` without new events. Polls the file, so
    it needs no notifications, which shared file systems lack. Raises `JournalError` if the journal is damaged.
    """
    reader, ended = JournalReader(path), False
    while True:
        for event in reader.more():
            ended = isinstance(event, RunFinished | RunInterrupted)
            yield event
        if ended and not reader.torn_bytes:
            return
        yield None
        await anyio.sleep(POLL_S)
