"""What is acknowledged is on the disk; what breaks ends the run with a clear error and keeps what is there."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path

import anyio
import pytest
from fake_runs import anyio_backend as anyio_backend

from atune.engine.strategy import MAKERS, FixedOrder, Searched
from atune.errors import MachineError
from atune.frontends.tuner import tune
from atune.journal.events import BestChanged, CandidateMeasured, Event, RunFinished
from atune.journal.reader import read
from atune.journal.writer import Journal
from atune.testing import FakeClock, FakeMachine, Script

pytestmark = pytest.mark.anyio
fsync = os.fsync


class Disk:
    """Counts the bytes of the journal that the last sync covered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.syncs = self.covered = 0
        self.slow_s = 0.0
        self.thread = threading.get_ident()
        patch.setattr(os, "fsync", self.fsync)

    def fsync(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        fsync(fd)
        if threading.get_ident() != self.thread:  # not the folder's, at the start
            threading.Event().wait(self.slow_s)
            self.syncs, self.covered = self.syncs + 1, size


class Listening(FixedOrder):
    """Remembers how much of the journal was on the disk when it learned of an outcome."""

    name = "listening"
    disk: Disk
    outcomes: list[tuple[int, int, int]]

    def __init__(self, searched: Searched) -> None:
        super().__init__(self.name, searched.configs)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        self.outcomes.append((index, self.disk.covered, self.disk.syncs))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    Listening.disk, Listening.outcomes = Disk(monkeypatch), []
    return Listening.disk


async def test_an_outcome_is_acknowledged_after_the_sync_that_covers_it(tmp_path: Path, disk: Disk) -> None:
    """Measured, failed, pruned and aliased alike; and BestChanged stands behind a sync too."""
    path = tmp_path / "j"
    script = Script(fails={3: "compile", 5: "mismatch"}, code_key=lambda c: str(c["x"] % 25))
    clock = FakeClock(pace=0.01)
    await tune(
        machine=FakeMachine(30, script, clock=clock),
        journal=path,
        strategy=Listening(Searched({index: {} for index in range(30)})),
    )
    ends, size = {}, 0
    for line, event in zip(path.read_bytes().splitlines(keepends=True), read(path), strict=True):
        size += len(line)
        if type(event).__name__ in ("CandidateMeasured", "BenchmarkFailed", "BuildFailed", "CandidateAliased"):
            ends[event.index] = size  # type: ignore[union-attr]
    assert sorted(index for index, _, _ in Listening.outcomes) == list(range(30)) == sorted(ends)
    assert all(covered >= ends[index] for index, covered, _ in Listening.outcomes)
    syncs = [n for _, _, n in Listening.outcomes]
    assert syncs == sorted(syncs) and syncs[0] >= 1 and disk.syncs >= 4
    assert disk.covered == path.stat().st_size  # the last one is at the end, and covers RunFinished


async def test_a_slow_disk_does_not_hold_the_device_up(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync takes 0.2 s; twenty candidates are measured during a few of them, which they share."""
    disk.slow_s = 0.2
    monkeypatch.setattr(Listening, "name", "exhaustive")  # which is not waited for
    monkeypatch.setitem(MAKERS, "exhaustive", Listening)
    path = tmp_path / "j"
    events: list[Event] = []
    with anyio.fail_after(20):
        await tune(machine=FakeMachine(20), journal=path, on_event=events.append)
    assert len(Listening.outcomes) == 20 and disk.syncs <= 6
    assert sum(isinstance(e, CandidateMeasured) for e in events) == 20
    first_best = next(i for i, e in enumerate(events) if isinstance(e, BestChanged))
    assert sum(isinstance(e, CandidateMeasured) for e in events[:first_best]) > 1
    assert isinstance(events[-1], RunFinished)


async def test_a_folder_that_vanishes_ends_the_run(tmp_path: Path) -> None:
    """Writing to a removed file would succeed for ever."""
    folder = tmp_path / "journals"
    folder.mkdir()
    machine = FakeMachine(5000, clock=FakeClock(pace=0.001))

    def remove(event: Event) -> None:
        if isinstance(event, CandidateMeasured):
            shutil.rmtree(folder, ignore_errors=True)

    with pytest.raises(MachineError, match="it was removed, or its file system went away"):
        await tune(machine=machine, journal=folder / "j", on_event=remove)
    assert machine.closed == 1 and machine.running == 0


def test_a_writer_that_ends_as_another_opens_its_empty_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the other one's file loses its name: a journal there would be lost."""
    first = Journal.create(tmp_path / "j")
    lock = fcntl.flock

    def end_first(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first.close()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", end_first)
    with Journal.create(tmp_path / "j") as journal:
        assert (tmp_path / "j").exists()
        assert os.fstat(journal._fd).st_nlink == 1
    assert not (tmp_path / "j").exists()
