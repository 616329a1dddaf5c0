"""z3's tables made small: what it answers stays, and so does what is not as it is known."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atune.local import LocalBackend
from atune.stages import z3_tables
from atune.workload import FileRef

z3: Any = pytest.importorskip("z3")
KNOWN = importlib.metadata.version("z3-solver") == "4.15.4.0" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not KNOWN, reason="changes z3-solver 4.15.4.0 for x86-64 alone")
HERE = Path(__file__).parent
LIBRARY = Path(z3.__file__).parent / "lib" / "libz3.so"
OPEN = """
import ctypes, sys
from atune.stages import z3_tables
from z3_contexts import context_mb, permissions
ctypes.CDLL(sys.argv[1])
"""
ASK = """
import random, sys
import z3
from atune.stages import z3_tables
if sys.argv[1] == "small":
    assert z3_tables.shrink()
OTHER = {"memory", "max memory", "num allocs", "time"}
random.seed(0)
for size in (10, 300, 9_000, 40_000):
    context = z3.Context()
    x = [z3.Int(f"x{i}", context) for i in range(size)]
    terms = [x[i] + random.randrange(1 << 30) for i in range(size)]
    again = [z3.Int(f"x{i}", context) for i in range(size)]
    assert [a.get_id() for a in again] == [a.get_id() for a in x], "a term is found again"
    random.shuffle(terms)
    print(size, z3.simplify(z3.Sum(terms)).hash(), terms[-1].get_id())
    del terms, again
for n in range(60):
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.set("rlimit", 10_000)
    x = [z3.Int(f"x{i}", context) for i in range(random.randrange(2, 9))]
    for variable in x:
        solver.add(variable >= random.randrange(4), variable < random.randrange(4, 300))
    for _ in range(random.randrange(1, 7)):
        a, b = random.choice(x), random.choice(x)
        k, m = random.randrange(1, 9), random.randrange(2, 33)
        some = [a * k + b <= m * 9, (a + b * k) % m == random.randrange(m), a / m != b / k, a * b > m]
        solver.add(random.choice(some))
    answer = solver.check()
    model = solver.model() if answer == z3.sat else solver.reason_unknown() if answer == z3.unknown else ""
    statistics = solver.statistics()
    counts = {key: statistics.get_key_value(key) for key in statistics.keys() if key not in OTHER}
    print(n, answer, str(model).replace("\\n", ""), counts)
"""


def run(script: str, *arguments: str, **environment: str) -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), *sys.path)), **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_most_of_a_context_stays_untouched() -> None:
    """A quarter of it at most, where the system gives out huge pages; what z3 takes to be allocated stays."""
    script = f"""{OPEN}
before, flags = context_mb(), permissions()
print(z3_tables.shrink())
print(*before, *context_mb(), permissions() == flags)
print(z3_tables.shrink())
"""
    shrunk, figures, again = run(script, str(LIBRARY))
    *numbers, same_permissions = figures.split()
    assert (shrunk, again, same_permissions) == ("True", "False", "True")
    allocated, touched, still_allocated, still_touched = map(float, numbers)
    assert touched > 16 and still_touched < touched / 3
    assert allocated > 16 and abs(still_allocated - allocated) < 0.1


def test_z3_answers_as_before() -> None:
    """Answers, models and the steps that they took; terms by the ten thousand, for which the tables grow."""
    large, small = run(ASK, "large"), run(ASK, "small")
    assert small == large
    answers = [line.split()[1] for line in large if line.endswith("}")]
    assert set(answers) == {"sat", "unsat", "unknown"}, "each kind is among them"


@pytest.mark.anyio
async def test_compile_workers_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    backend = LocalBackend(FileRef(str(HERE.parent / "examples" / "gemm.py"), "WORKLOAD"), target="sm_90a")
    async with backend.open():
        worker = await backend.spawn("compile")
        assert 0 < float(await worker.call("z3_contexts:touched_mb", b"")) < 6


def test_another_build_is_left_alone(tmp_path: Path) -> None:
    """One byte that is not as it is known, in the code or in a constant."""
    script = f"{OPEN}\nprint(z3_tables.shrink(), context_mb()[1] > 16)"
    places = [(0x30E584, b"\x48\x8d\x90"), (0xFDD850, b"\0\0\x08")]
    for n, (place, known) in enumerate(places):
        copy = tmp_path / str(n) / "libz3.so"
        copy.parent.mkdir()
        shutil.copy(LIBRARY, copy)
        with open(copy, "r+b") as file:
            file.seek(place)
            assert file.read(len(known)) == known
            file.seek(place + len(known) - 1)
            file.write(b"\x91" if n == 0 else b"\x10")
        said = script if n == 0 else f"{OPEN}\nprint(z3_tables.shrink(), True)"  # its tables do not fit any more
        assert run(said, str(copy)) == ["False True"]


def test_it_is_left_alone_where_it_must_not_be_written() -> None:
    """As by SELinux: refused at the first page, or in the middle."""
    script = f"""{OPEN}
protect, calls, flags = z3_tables._protect, [], permissions()
def refused(page, protection):
    calls.append(protection & z3_tables.PROT_WRITE)
    if len(calls) == int(sys.argv[2]):
        raise PermissionError(13, "refused")
    protect(page, protection)
z3_tables._protect = refused
print(z3_tables.shrink(), context_mb()[1] > 16, permissions() == flags, sum(map(bool, calls)))
"""
    for n in (1, 3):
        assert run(script, str(LIBRARY), str(n)) == [f"False True True {n}"]


def test_it_can_be_turned_off() -> None:
    script = f"{OPEN}\nprint(z3_tables.shrink(), context_mb()[1] > 16)"
    assert run(script, str(LIBRARY), ATUNE_LARGE_Z3_TABLES="1") == ["False True"]


def test_without_z3_nothing_happens() -> None:
    assert run("from atune.stages import z3_tables; print(z3_tables.shrink())") == ["False"]


def test_the_edits_agree() -> None:
    """Same lengths, nothing twice, and every number but the slots and the cells made smaller by as many cells."""
    edits = z3_tables._edits()
    spans = sorted((offset, offset + len(before)) for offset, before, _ in edits)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    fewer = z3_tables.SLOTS - z3_tables.FEWER_SLOTS
    for offset, before, after in edits:
        assert before[:-4] == after[:-4] and len(before) == len(after)
        cells = int.from_bytes(before[-4:], "little") - int.from_bytes(after[-4:], "little")
        assert cells == (fewer if offset >= 0xFD9000 else fewer * z3_tables.CELL)
    assert len(edits) == 9
