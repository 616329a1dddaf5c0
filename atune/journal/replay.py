"""Journals played back: their result, and their events in their own time. Runs no code of a workload."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from atune.journal.events import AnyEvent, RunFinished, RunInterrupted, RunStarted
from atune.journal.reader import MAX_LINE_BYTES, JournalReader, cannot, is_compressed, parse_line
from atune.journal.result import Result

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
