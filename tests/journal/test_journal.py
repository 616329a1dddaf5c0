"""The journal: what is written is read back, damage is no torn tail, and one writer holds the lock."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from event_streams import Stream, write
from processes import environment

from atune.errors import JournalError, MachineError
from atune.journal.events import SCHEMA
from atune.journal.reader import JournalReader, read
from atune.journal.writer import Journal
from atune.model.folders import cache_folder_at

STREAM = Stream(total=2, default=0).ready(3.0).candidate(0, 2.0, tile=(1, 2)).candidate(1, 1.0)
EVENTS = STREAM.final({1: [1.0, 1.1], 0: [2.0, 2.2]}).finished().events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", EVENTS)


def test_the_file_and_the_cache_s_folders_it_needs_are_private(tmp_path: Path) -> None:
    with cache_folder_at(tmp_path / "cache"):
        path = write(tmp_path / "cache" / "journals" / "run.jsonl", EVENTS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_elsewhere_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"there is no folder {tmp_path}/a/b; create it first"):
        Journal.create(tmp_path / "a" / "b" / "run.jsonl")
    assert not list(tmp_path.iterdir())


def test_missing_and_moved_lines_are_errors(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(JournalError, match=r"line 3: this is event 3 instead of event 2; .*with `head -n 2`"):
        read(path)
    path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(
        JournalError, match=r"line 1: this is event 1 instead of event 0; lines are missing or were moved$"
    ):
        read(path)
    path.write_bytes(b"".join([*lines, lines[0]]))
    with pytest.raises(JournalError, match=f"line {len(lines) + 1}: this is event 0 instead"):
        read(path)


def test_a_journal_of_a_newer_atune_is_refused_by_its_schema(tmp_path: Path) -> None:
    path = write(tmp_path / "new.jsonl", Stream(schema=SCHEMA + 1).events)
    with pytest.raises(JournalError, match="newer atune"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty, or its run is still starting"),
        (b"hello\nworld\n", "line 1: this is not a journal of atune"),
        (b"[" * 500_000 + b"\n\n", "line 1"),
        (b"x" * (9 << 20), "longer than 8 MiB"),
        (b'{"crc":"00000000","event":{}}\n\n', "line 1"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=message):
        read(path)


def test_a_full_disk_leaves_whole_lines_and_a_clear_error(tmp_path: Path) -> None:
    """A file size limit stands for the full disk: the write that meets it is partial, as on a real one."""
    path, (limit, most) = tmp_path / "full.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal.create(path) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, most))
        try:
            for events in (EVENTS, EVENTS[:1]):  # none is written after that either
                with pytest.raises(MachineError, match=rf"{path}.*ulimit -f"):
                    for event in events:
                        journal.append(event)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    reader = JournalReader(path)
    assert len(list(reader)) >= 2 and not reader.torn_bytes


def test_a_journal_without_an_event_leaves_no_file_but_a_file_of_the_user_stays(tmp_path: Path) -> None:
    Journal.create(tmp_path / "j").close()
    assert not (tmp_path / "j").exists()
    (tmp_path / "mine").touch()
    Journal.create(tmp_path / "mine").close()
    assert (tmp_path / "mine").exists()


def test_reopening_cuts_the_torn_tail_off_and_goes_on(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])
    journal, events = Journal.reopen(path)
    with journal:
        assert len(events) == len(EVENTS) - 1
        with pytest.raises(JournalError, match="another run"):
            Journal.reopen(path)
        journal.append(EVENTS[-1])
    assert len(read(path)) == len(EVENTS)


HOLDER = """
import sys
from event_streams import Stream
from atune.journal.writer import Journal
journal = Journal.create(sys.argv[1])
journal.append(Stream().events[0])
print("held", flush=True)
sys.stdin.read()
"""


def test_another_writer_is_refused_until_it_is_gone_also_by_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        for open_it in (Journal.create, Journal.reopen):
            with pytest.raises(JournalError, match="another run is writing the journal"):
                open_it(path)
        assert len(read(path)) == 1  # reading needs no lock
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
    journal, events = Journal.reopen(path)
    journal.close()
    assert len(events) == 1


def test_a_look_at_whether_a_journal_is_written_refuses_no_writer(tmp_path: Path, monkeypatch: Any) -> None:
    """Somebody looks while the writer tries for the first time."""
    (tmp_path / "run.jsonl").touch()
    looks, lock = (tmp_path / "run.jsonl").open("rb"), fcntl.flock

    def locking(fd: int, how: int) -> None:
        try:
            lock(fd, how)
        finally:
            looks.close()

    lock(looks, fcntl.LOCK_SH)
    monkeypatch.setattr(fcntl, "flock", locking)
    Journal.create(tmp_path / "run.jsonl").close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_sync_returns_at_once_and_the_next_caller_syncs(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls = threading.Event(), []

    async def main() -> None:
        began = anyio.Event()

        def fsync(fd: int) -> None:
            calls.append(fd)
            if len(calls) == 1:
                anyio.from_thread.run_sync(began.set)
                assert release.wait(10)

        monkeypatch.setattr(os, "fsync", fsync)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.sync)
            await began.wait()
            cancelled = anyio.current_time()
            tasks.cancel_scope.cancel()
        assert tasks.cancel_scope.cancelled_caught and anyio.current_time() - cancelled < 1
        await journal.sync()
        release.set()

    with Journal.create(tmp_path / "j") as journal:
        journal.append(EVENTS[0])
        anyio.run(main, backend=backend)
    assert len(calls) == 2


def test_a_failed_sync_is_never_followed_by_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(MachineError, match="cannot sync"):
                await journal.sync()

    with Journal.create(tmp_path / "j") as journal:
        journal.append(EVENTS[0])
        monkeypatch.setattr(os, "fsync", fsync)
        anyio.run(main)
        with pytest.raises(MachineError):
            journal.append(EVENTS[1])
    assert len(calls) == 1
