"""`bench/record.py`: what it keeps, skips, resumes and prints."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import record

from atune.journal.events import RunStarted
from atune.journal.reader import read, replay

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads.py"
SLICED = f"{WORKLOADS}:SLICED"
NAME = "workloads_sliced"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the recording of a space of two candidates, tuned on the CPU."""
    out = tmp_path_factory.mktemp("recorded")
    assert record.main(["--spaces", SLICED, "--target", "c", "--out", str(out)]) == 0
    yield out


def whole(recorded: Path) -> bytes:
    return lzma.decompress((recorded / f"{NAME}.jsonl.xz").read_bytes())


def test_a_recording_holds_the_whole_run(recorded: Path) -> None:
    assert sorted(path.name for path in recorded.iterdir()) == ["table.md", f"{NAME}.jsonl.xz"]
    with record.opened(recorded / f"{NAME}.jsonl.xz") as journal:
        result = replay(journal)
        header = read(journal)[0]
    assert result.finished and result.measured == result.total == 2 and result.remaining == 0
    assert isinstance(header, RunStarted)
    row = next(line for line in (recorded / "table.md").read_text().splitlines() if NAME in line)
    assert [cell.strip() for cell in row.split("|")][2:6] == ["2", "2", "0", "0"]


def test_a_recording_names_no_path_of_the_machine(recorded: Path) -> None:
    """Paths are cut to what is below the repository, and checksums hold."""
    text = whole(recorded).decode()
    assert '"origin":"tests/workloads.py:SLICED"' in text
    assert str(record.ROOT) not in text and record.SCRATCH not in text and not re.search(r'"/\w', text)
