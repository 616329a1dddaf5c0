"""A disk that is full for a while."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lost_kernels import TOTAL
from stand_in_compiler import stand_in

from atune.frontends.tuner import tune
from atune.journal.events import CandidateMeasured, Event, Warned
from atune.model.settings import CompileSettings
from atune.workers import workers as patience

pytestmark = pytest.mark.anyio
KERNELS = f"{Path(__file__).parents[1] / 'lost_kernels.py'}:WORKLOAD"
SETTINGS = CompileSettings(workers=2, group_size=1, store=False, cicc=False)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.1, 0.2, 0.4))


class Disk:
    """A small disk for `$TMPDIR`, which can be filled to the last byte."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.filling = folder, folder / "filling"

    def fill(self) -> None:
        with self.filling.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def free(self) -> None:
        self.filling.unlink()


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Filling:
    """Listens to a run in which two candidates are compiled and one is measured: then `disk` is full.

    There is room again as soon as the run says that it waits.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.disk, self.events = disk, list[Event]()
        self.go_on = folder / "go"
        self.wait = f"mkdir {folder}/1 || mkdir {folder}/2 || until [ -e {self.go_on} ]; do sleep 0.05; done"

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, CandidateMeasured) and not self.go_on.exists():
            self.disk.fill()
            self.go_on.touch()
        elif isinstance(event, Warned) and "no space is left" in event.message:
            self.disk.free()


async def test_a_disk_that_is_full_for_a_while_costs_no_candidate(disk: Disk, tmp_path: Path) -> None:
    filling = Filling(tmp_path, disk)
    with stand_in(tmp_path) as compiler:
        compiler(f"{{ {filling.wait}; }} 2>/dev/null\n")
        result = await tune(KERNELS, target="c", compile=SETTINGS, on_event=filling)
    assert filling.go_on.exists() and not disk.filling.exists()
    assert (result.measured, result.failed, result.best_index) == (TOTAL, 0, 0)
