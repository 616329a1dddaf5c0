"""z3's tables made small: what it answers stays, and so does what is not as it is known."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from z3_contexts import known

from atune.local.backend import LocalBackend
from atune.stages.accelerators import z3_tables
from atune.workload.workload import FileRef

z3: Any = pytest.importorskip("z3")
pytestmark = pytest.mark.skipif(not known(), reason="changes z3-solver 4.15.4.0 for x86-64 alone")
HERE = Path(__file__).parents[2]
LIBRARY = Path(z3.__file__).parent / "lib" / "libz3.so"
OPEN = """
import ctypes, mmap, sys
from atune.stages.accelerators import z3_tables
from z3_contexts import context_mb, permissions
ctypes.CDLL(sys.argv[1])
"""
ASK = """
import random, sys
import z3
from atune.stages.accelerators import z3_tables
if sys.argv[1] == "small":
    assert z3_tables.shrink()
OTHER = {"memory", "max memory", "num allocs", "time", "rlimit count"}
random.seed(0)
for size in (10, 300, 20_000):
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
solver = z3.SimpleSolver(ctx=z3.Context())
chain = [z3.Bool(f"b{i}", solver.ctx) for i in range(20_000)]
solver.add(chain[0], *map(z3.Implies, chain, chain[1:]))
print("a chain", solver.check(), solver.check(z3.Not(chain[-1])))
context = z3.Context()
parallel = z3.ParThen(z3.Tactic("split-clause", context), z3.Tactic("smt", context)).solver()  # copies what it solves
y = z3.Int("y", context)
parallel.add(z3.Or(y < 0, y > 5), y * y == 49, y > -7)
print("in parallel", parallel.check(), parallel.model())
"""


def run(script: str, *arguments: str, **environment: str) -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE), *sys.path)),
        z3_tables.OFF: "0",
        **environment,
    }
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
    """Answers, models and the steps that they took; terms by the ten thousand, for which the tables grow; copies."""
    large, small = run(ASK, "large"), run(ASK, "small")
    assert small == large and large[-2:] == ["a chain sat unsat", "in parallel sat [y = 7]"]
    answers = [line.split()[1] for line in large if line.endswith("}")]
    assert set(answers) == {"sat", "unsat", "unknown"}, "each kind is among them"


@pytest.mark.anyio
async def test_compile_workers_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    backend = LocalBackend(FileRef(str(HERE.parent / "examples" / "gemm.py"), "WORKLOAD"), target="sm_90a")
    async with backend.open():
        worker = await backend.spawn("compile")
        assert 0 < float(await worker.call("z3_contexts:touched_mb", b"")) < 8


@pytest.mark.parametrize("place", [0x30E584, 0x30E5AC, 0xFDD850])
def test_another_build_is_left_alone(tmp_path: Path, place: int) -> None:
    """One byte that is not as it is known, in the first place or in a later one: then nothing is changed anywhere."""
    (known,) = (before for offset, before, _ in z3_tables._edits() if offset == place)
    copy = tmp_path / "libz3.so"
    shutil.copy(LIBRARY, copy)
    with open(copy, "r+b") as file:
        file.seek(place)
        assert file.read(len(known)) == known
        file.seek(place + 2)
        file.write(bytes([known[2] ^ 1]))
    script = f"""{OPEN}
base = min(start for start, _, _, _ in z3_tables._segments())
held = lambda: [ctypes.string_at(base + offset, len(before)) for offset, before, _ in z3_tables._edits()]
before = held()
print(z3_tables.shrink(), held() == before, sum(a != b for a, (_, b, _) in zip(before, z3_tables._edits())))
"""
    assert run(script, str(copy)) == ["False True 1"]


def test_it_is_left_alone_where_it_must_not_be_written() -> None:
    """As by SELinux: refused at the first page, in the middle, or at the last, that of the constants."""
    script = f"""{OPEN}
protect, calls, flags = z3_tables._protect, [], permissions()
def refused(page, protection):
    calls.append(protection & mmap.PROT_WRITE)
    if len(calls) == int(sys.argv[2]):
        raise PermissionError(13, "refused")
    protect(page, protection)
z3_tables._protect = refused
print(z3_tables.shrink(), context_mb()[1] > 16, permissions() == flags, sum(map(bool, calls)))
"""
    for n in (1, 3, 4):
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
