"""A disk that is full, and other things a machine runs out of: no candidate fails, and the run can go on."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lost_kernels import TOTAL
from stand_in_compiler import stand_in

from atune.errors import MachineError
from atune.frontends.api.resume import resume
from atune.frontends.api.tuner import tune
from atune.journal.events import BenchmarkFailed, BuildFailed, CandidateMeasured, Event, Warned
from atune.journal.reader import read, replay
from atune.model.settings import CompileSettings
from atune.workers.local import workers as patience

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


def failures(events: list[Event]) -> list[Any]:
    return [e for e in events if isinstance(e, BuildFailed | BenchmarkFailed)]


def measured(events: list[Event]) -> list[int]:
    return [e.index for e in events if isinstance(e, CandidateMeasured)]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], object]]:
    with stand_in(tmp_path_factory.mktemp("bin")) as says:
        yield says


class Shortage:
    """Listens to a run in which two candidates are compiled, one is measured, and then something is short.

    `begin` makes it so; `end` is called as soon as the run says that it waits for `what`.
    """

    def __init__(self, folder: Path, what: str, begin: Callable[[], None], end: Callable[[], None] | None) -> None:
        self.what, self.begin, self.end = what, begin, end
        self.events: list[Event] = []
        self.go_on = folder / "go"
        self.wait = f"mkdir {folder}/1 || mkdir {folder}/2 || until [ -e {self.go_on} ]; do sleep 0.05; done"

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, CandidateMeasured) and not self.go_on.exists():
            self.begin()
            self.go_on.touch()
        elif isinstance(event, Warned) and self.what in event.message and self.end is not None:
            self.end()


async def test_a_disk_that_is_full_for_a_while_costs_no_candidate(
    disk: Disk, compiler: Callable[[str], object], tmp_path: Path
) -> None:
    shortage = Shortage(tmp_path, "no space is left", disk.fill, disk.free)
    compiler(f"{{ {shortage.wait}; }} 2>/dev/null\n")
    result = await tune(KERNELS, target="c", compile=SETTINGS, on_event=shortage)
    assert shortage.go_on.exists() and not disk.filling.exists() and not failures(shortage.events)
    assert (sorted(measured(shortage.events)), result.best_index) == (list(range(TOTAL)), 0)


@pytest.mark.filterwarnings("ignore:running .*, which the journal names:RuntimeWarning")
async def test_a_compiler_that_names_what_the_machine_lacks(compiler: Callable[[str], object], tmp_path: Path) -> None:
    """A little while it is waited for; then the run ends, and resume tries its candidates again."""
    output, says = "cc1plus: fatal error: x.h: Too many open files", "no further file"
    journal, mark = tmp_path / "j", tmp_path / "short"
    shortage = Shortage(tmp_path, says, mark.touch, None)
    compiler(f"{{ {shortage.wait}; }} 2>/dev/null\nif [ -e {mark} ]; then echo '{output}' >&2; exit 1; fi\n")
    with pytest.raises(MachineError, match=says):
        await tune(KERNELS, target="c", compile=SETTINGS, journal=journal, on_event=shortage)
    assert measured(shortage.events) and not failures(shortage.events)
    mark.unlink()
    result = await resume(journal)
    assert (result.measured, result.failed, result.remaining, result.best_index) == (TOTAL, 0, 0, 0)
    assert sorted(measured(list(read(journal)))) == list(range(TOTAL)) and replay(journal).best_index == 0
