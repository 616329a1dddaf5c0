"""What the machine lacks is waited for, and then ends the run."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from atune.errors import MachineError, RemoteError, WorkerError, WorkloadError
from atune.model.artifact import Failure
from atune.model.candidate import Candidate
from atune.stages import entry_points, session
from atune.workers import resources
from atune.workers import workers as patience
from atune.workers.resources import (
    WORKER_BYTES,
    CompilerKilled,
    ShortOf,
    check_compiled,
    check_machine,
)
from atune.workers.workers import Workers
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.anyio
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.0, 0.0))


def free(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(resources, "usable_memory_bytes", lambda: room)


def workers_of(folder: Path, warn: Callable[[str], None]) -> Workers:
    workers = Workers(FileRef("x.py", "X"))
    workers.run_dir, workers.warn = str(folder), warn
    return workers


class Attempts:
    """Raises `error` the first `fails` times."""

    def __init__(self, error: Exception, fails: int) -> None:
        self.error, self.fails, self.made = error, fails, 0

    async def __call__(self) -> str:
        self.made += 1
        if self.made <= self.fails:
            raise self.error
        return "done"


@pytest.mark.parametrize(
    ("error", "says", "advice"),
    [
        (FULL, "no space is left on the disk of", "make room there, or set TMPDIR"),
        (RemoteError("[Errno 28] No space left on device", kind="OSError"), "no space is left", "TMPDIR"),
        (RemoteError("files: x", kind="ShortOf"), "no more files can be opened", "ulimit -n"),
        (WorkerError("compile-0-1 did not start: cannot fork: [Errno 11] x"), "no more processes", "ulimit -u"),
        (RemoteError("memory: x", kind="ShortOf"), "memory ran out", "fewer compile workers"),
    ],
)
async def test_what_stays_short_ends_the_run_and_says_what_to_do(
    error: Exception, says: str, advice: str, tmp_path: Path
) -> None:
    warnings: list[str] = []
    attempts = Attempts(error, 99)
    with pytest.raises(MachineError) as caught:
        await workers_of(tmp_path, warnings.append).until_it_works(attempts)
    message = str(caught.value)
    assert says in message and advice in message and "atune resume" in message and caught.value.__cause__ is error
    assert attempts.made == 4
    assert len(warnings) == 1 and warnings[0].startswith("waiting") and says in warnings[0]


@pytest.mark.parametrize(
    "error",
    [
        RemoteError("KeyError: 'No space left on device'", kind="KeyError"),
        WorkerError("No space left on device"),
        OSError(errno.ENOENT, "x"),
    ],
)
async def test_what_is_no_shortage_is_not_tried_again(error: Exception, tmp_path: Path) -> None:
    attempts = Attempts(error, 99)
    with pytest.raises(type(error)):
        await workers_of(tmp_path, print).until_it_works(attempts)
    assert attempts.made == 1


@pytest.mark.parametrize(
    ("output", "kind", "says"),
    [
        ("/usr/bin/ld: final link failed: No space left on device", ShortOf, "space: "),
        ("cc1plus: fatal error: error writing to /tmp/cc.s: Disk quota exceeded", ShortOf, "space: "),
        ("g++: fatal error: vfork: Resource temporarily unavailable", ShortOf, "processes: "),
        ("nvcc fatal: Could not open input file: Too many open files", ShortOf, "files: "),
        ("nvcc fatal: Too many open files in system", ShortOf, "files: "),
        ("cc1plus: out of memory allocating 65536 bytes", ShortOf, "memory: "),
        ("g++: fatal error: Killed signal terminated program cc1plus", CompilerKilled, ""),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", CompilerKilled, ""),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", CompilerKilled, ""),
        ("g++ failed, killed by signal 15", CompilerKilled, ""),
        ("nvcc error : 'cicc' died due to signal 11", None, ""),
        ("error: expected ';'", None, ""),
    ],
)
def test_compiler_output_names_what_the_machine_lacks(
    output: str, kind: type[Exception] | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that a compiler was killed; other output is the candidate's failure."""
    free(monkeypatch, 0)
    with pytest.raises(kind, match=f"^{says}") if kind is not None else nullcontext():
        check_machine(RuntimeError("g++ failed"), output)


@pytest.mark.parametrize("full", [True, False])
def test_a_compiler_that_fails_on_a_full_disk_need_not_say_why(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "LEAST_BYTES", 1 << 60 if full else 0)
    with pytest.raises(ShortOf, match=r"^space: .* is full; nvcc failed") if full else nullcontext():
        check_compiled(RuntimeError("x"), "nvcc failed")


@pytest.mark.parametrize(
    ("room", "cause", "short_of"), [(0, MemoryError(), "memory"), (WORKER_BYTES, MemoryError(), ""), (0, FULL, "space")]
)
def test_what_a_kernel_function_raises_is_the_machines_fault_where_it_lacks_something(
    room: int, cause: Exception, short_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who asks for more memory than any machine has fails on each, and must not end the run."""
    free(monkeypatch, room)

    def kernel(candidate: Candidate) -> Failure:
        raise ValueError("cannot be made") from cause

    with pytest.raises(ShortOf, match=f"^{short_of}: ") if short_of else nullcontext():
        answer = entry_points._guarded(Candidate(0, "", {}), kernel)
        assert isinstance(answer, Failure) and answer.kind == "lower"


@pytest.mark.parametrize(("number", "raised"), [(errno.EMFILE, ShortOf), (errno.ENOENT, WorkloadError)])
def test_what_a_workloads_file_raises_is_the_machines_fault_where_it_lacks_something(
    number: int, raised: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "workload.py").write_text(f"raise OSError({number}, 'said')")
    with pytest.raises(raised, match="said"):
        session._loaded(FileRef(str(tmp_path / "workload.py"), "W"))
