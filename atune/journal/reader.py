"""Read journals. Each line is checked, and nothing in a line is executed.

A line is ``{"crc":"xxxxxxxx","event":{…}}``, where crc is the CRC-32 of the event's bytes, in hexadecimal digits.
`docs/journal.md` describes the format for programs that read journals themselves.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import anyio
import msgspec

from atune.errors import JournalError
from atune.journal.events import SCHEMA, AnyEvent, Found, RunFinished, RunInterrupted, RunStarted, decode
from atune.journal.result import Result
from atune.journal.state import State, ended_by, finished, recorded_budget
from atune.model.candidate import describe_config
from atune.model.folders import cache_folder, is_cached, regular_file

NAMED_JOURNALS = 10
"""The largest number of journals that the message for a folder names."""
MAX_LINE_BYTES = 8 * 1024 * 1024
"""The largest size of a line in bytes. No event is larger, and a decoded line takes many times as much memory."""
MAX_DEPTH = 64
"""The largest depth of nesting. No event is deeper, and code that walks a deeper value could overflow the stack."""
MAX_PARTS, MAX_VALUES = 100_000, 4_000_000
"""The largest numbers of lists and objects, and of values, in a line. Decoding a line may take 100 times its size."""
MAX_ALL_VALUES = 12_000_000
"""The largest number of values in a journal outside the cache folder: about 200,000 candidates, or 1 GB of memory."""


class _CheckedLine(msgspec.Struct, forbid_unknown_fields=True):
    crc: str
    event: msgspec.Raw


class _Header(msgspec.Struct):
    schema: int = 0


_read_line = msgspec.json.Decoder(_CheckedLine)


class JournalReader:
    """An iterator over all events of the journal at `path`, beginning with the header.

    An incomplete last line is omitted. After the iteration, `torn_bytes` is the length of this line, and `whole_bytes`
    is the length of all lines before it. Raises `JournalError` if the file cannot be read, is not a journal, was
    written by a newer atune, or is damaged before its last line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.torn_bytes = self.whole_bytes = self._lines = self._values = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        self.whole_bytes = self._lines = self._values = 0
        yield from self.more()
        if not self.whole_bytes:
            why = "its only line is incomplete" if self.torn_bytes else "it is empty, or its run is still starting"
            raise JournalError(f"{self.path} is not a journal of atune: {why}")

    def more(self) -> Iterator[AnyEvent]:
        """Yield the events that have not been read yet."""
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
            why = f"{self.path} is a folder and not a journal: {_inside(Path(self.path))}"
            raise JournalError(why) from error
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
        """Return the event of a complete line. Raises `JournalError` if the line is `unfit` or in the wrong place."""
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
            raise JournalError(f"{where}: this version of atune does not know the event ({error})") from error
        if event.seq != number - 1:
            raise JournalError(
                f"{where}: this is event {event.seq} instead of event {number - 1}; lines are missing or were moved"
                f"{_how_to_keep(number)}"
            )
        if isinstance(event, RunStarted) != (number == 1):
            raise JournalError(f"{where}: the header must be the first line, and no other line may be a header")
        return event

    def damaged(self, number: int) -> JournalError:
        """Return the error for line `number`, which is complete but does not match its checksum."""
        damaged = "damaged, because it does not match its checksum"
        why = "this is not a journal of atune, or it is damaged" if number == 1 else damaged
        if number == 1 and self.path.endswith((".gz", ".xz", ".bz2", ".zst")):
            why = "the file is compressed: unpack it first"
        return JournalError(f"{self.path}, line {number}: {why}{_how_to_keep(number)}")


def _inside(folder: Path) -> str:
    """Return text that says which journals a folder has, with a line for each of the first journals."""
    journals, lines = sorted(folder.glob("*.jsonl")), ["give a journal in it, such as"]
    for path in journals[:NAMED_JOURNALS]:
        problem = ""
        with suppress(JournalError):  # the journal is damaged
            problem = describe_config(cast(RunStarted, next(iter(JournalReader(path)))).arguments)
        lines.append(f"{path}  {problem}".rstrip())
    more = len(journals) - NAMED_JOURNALS
    return "\n  ".join([*lines, f"and {more} more"] if more > 0 else lines) if journals else "it has no *.jsonl file"


def _how_to_keep(number: int) -> str:
    """Return a command that saves the lines before line `number`."""
    if number == 1:
        return ""
    return f"; the lines before it are undamaged: save them as a journal with `head -n {number - 1}`"


def read(path: str | Path) -> list[AnyEvent]:
    """Return the events of the journal at `path` without an incomplete last line. Raises as `JournalReader` does."""
    return list(JournalReader(path))


def ends(path: str | Path) -> tuple[RunStarted | None, AnyEvent | None]:
    """Return the first and the last event of the journal at `path`, without reading the events in between.

    An incomplete last line is skipped. If the first line is incomplete, both events are None. If the last line is
    damaged, the last event is None. Raises `OSError`, and `JournalError` if the first line is not a header.
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
"""The numbers of bytes to read from a journal's end. More bytes are read until the last event's line is complete."""


def is_journal(path: str | Path) -> bool:
    """Tell whether the file at `path` begins like a journal. The rest of the file may be damaged. Raises `OSError`."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


_BEGINNING = b'{"crc":"'


def parse_line(line: bytes) -> AnyEvent | None:
    """Return the event of a line. Return None if the line lacks its newline or is damaged, or the event is unknown."""
    body = _body(line) if line.endswith(b"\n") else None
    try:
        return None if body is None or unfit(line) else decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _body(line: bytes) -> msgspec.Raw | None:
    """Return the event's bytes. Return None if the line is damaged."""
    try:
        parsed = _read_line.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return parsed.event if f"{zlib.crc32(parsed.event):08x}" == parsed.crc else None


def unfit(text: bytes) -> str:
    """Return the reason that JSON from a stranger is too costly to decode. Empty if the JSON may be decoded."""
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
"""An integer with at least 300 digits. A float has at most 309 digits, and Python prints at most 4,300 digits."""


_ADVICE = {
    errno.EISDIR: "it is a folder: give a file in it",
    errno.ENOTDIR: "a part of the path is a file: give another path",
    errno.EEXIST: "a part of the path is a file: give another path",
    errno.EFBIG: "the file would exceed the size limit of this process (ulimit -f)",
    errno.ENOLCK: "the file system has no locks: give a path on a local disk",
    errno.EMFILE: "too many files are open in this process: raise the limit (ulimit -n 1024)",
}


def cannot(doing: str, path: str, error: OSError, do: str = "") -> JournalError:
    """Return the `JournalError` for an `OSError`. The message gives the reason, and `do` or the usual advice."""
    why = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    if do:
        why = f"{why.partition(':')[0]}: {do}"
    return JournalError(f"cannot {doing} the journal {path}: {why}")


POLL_S = 0.5
"""The number of seconds between two reads of a journal that another process writes."""


def replay(path: str | Path) -> Result:
    """Return the result of the journal at `path`. The run may be interrupted or may still be going on.

    Nothing that the journal names is imported or executed. Raises `JournalError` if the journal cannot be read, or is
    damaged before its last line.
    """
    return Result.from_events(JournalReader(path), Path(path), replayed=True)


def found_in(state: State, reason: str = "") -> Found:
    """Return the outcome of a run so far. `reason`: the reason that the run ends, if `state` has no reason yet."""
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
    """Yield the events of a journal until its run ends. Another process or another machine may write the journal.

    Yields None after the events that are already there, and then every `POLL_S` seconds without a new event. The file
    is polled, because shared file systems have no notifications. Raises `JournalError` if the journal is damaged.
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
