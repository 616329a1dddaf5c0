"""How many compile workers fit the memory: the machine's and the cgroups' around this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.workers.local import machine as local
from atune.workers.processes.messages import Discovery
from atune.workers.system.resources import WORKER_BYTES, usable_memory_bytes
from atune.workload.pickling import FileRef

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 64 GiB available and a process in the cgroup /jobs/mine, none limited."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/jobs/mine\n")
    (tmp_path / "cgroup" / "jobs" / "mine").mkdir(parents=True)
    return tmp_path


def limit(machine: Path, group: str, maximum: int | str, current: int, inactive_file: int = 0) -> None:
    folder = machine / "cgroup" / group
    (folder / "memory.max").write_text(f"{maximum}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\n")


def usable(machine: Path) -> int | None:
    return usable_memory_bytes(machine / "proc", machine / "cgroup")


def test_the_tightest_cgroup_around_the_process_counts(machine: Path) -> None:
    """Page cache that can be dropped is free. Without a limit the whole machine's memory counts."""
    assert usable(machine) == 64 * GIB
    limit(machine, "jobs/mine", "max", 7 * GIB)
    assert usable(machine) == 64 * GIB
    limit(machine, "jobs/mine", 32 * GIB, 2 * GIB)
    assert usable(machine) == 30 * GIB
    limit(machine, "jobs", 8 * GIB, 5 * GIB)
    assert usable(machine) == 3 * GIB
    limit(machine, "jobs", 8 * GIB, 8 * GIB, inactive_file=6 * GIB)
    assert usable(machine) == 6 * GIB


def test_workers_are_as_many_as_fit_unless_a_number_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "usable_cores", lambda: list(range(32)))
    monkeypatch.setattr(local, "usable_memory_bytes", lambda: 3 * WORKER_BYTES)
    warnings = list[str]()
    for workers, wanted in ((None, 3), (6, 6)):
        settings = CompileSettings(workers=workers)
        machine = local.LocalMachine(FileRef("x.py", "X"), target="sm_90a", devices=(), compile=settings)
        machine._warn = warnings.append
        machine._found = Discovery(target=Target("cuda", "sm_90a"), devices=())
        assert len(machine.compile_workers()) == wanted
    [warning] = warnings
    assert warning.startswith("3 compile workers on 32 cores: 3.0 GiB are free, with 1 GiB set aside for each")
