"""Threads counted without z3: the same counts, hence the same code, and z3 wherever it takes a solver."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import z3_layer
from z3_contexts import known

from atune.stages.accelerators import counting, z3_tables
from atune.stages.compile import lowering
from atune.system.folders import SERVER_FOLDER

z3: Any = pytest.importorskip("z3")
EXAMPLES = Path(__file__).parents[3] / "examples"
LOWER = """
import json, os, sys
from atune.stages.accelerators import counting
counting.begin()
counting.load()
import tilelang
from atune.stages.accelerators import z3_tables
shrunk = z3_tables.shrink()
import msgspec
from atune.model.candidate import Candidate, config_key
from atune.model.device import Target
from atune.processes.messages import Session
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages.compile import lowering
from atune.stages.session.session import session
from atune.workload.workload import FileRef

class Noting:
    def __init__(self, library):
        self.library, self.called = library, []
    def __getattr__(self, name):
        function = getattr(self.library, name)
        def call(*arguments):
            self.called.append((name, *arguments))
            return function(*arguments)
        return call

if counting._library is not None:
    counting._library = Noting(counting._library)
found = []
for path, config in json.loads(sys.argv[2]):
    if counting._library is not None:
        counting._library.called.clear()
    before, found_before = counting.answered(), counting.found()
    settings = Session(
        FileRef(path, "WORKLOAD"), Target("cuda", "sm_90a"), CompileSettings(), BenchmarkSettings(), sys.argv[1]
    )
    session.begin(msgspec.msgpack.encode(settings))
    lowered = lowering.lower(Candidate(0, config_key(config), config))
    source = msgspec.msgpack.decode(lowered.blob, type=lowering.Blob).source
    again = ("atune_counting_off", True, True) in getattr(counting._library, "called", [])
    found.append([counting.answered() - before, counting.found() - found_before, again, source, lowered.ir_key])
print(shrunk)
print(json.dumps(found))
"""
LIMIT = 10_000
"""Steps that tilelang lets z3 take for one answer."""

Range = Callable[..., "tuple[int, int] | None"]


@pytest.fixture(scope="module")
def range_of(tmp_path_factory: pytest.TempPathFactory) -> Range:
    """Return what tells the range of a z3 term beside a solver's constraints; None where z3 is to count."""
    library = z3_layer.made(tmp_path_factory.mktemp("counting"))
    pointer, number = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)
    library.atune_range.argtypes = [pointer, pointer, pointer, pointer, number, number]
    library.atune_range.restype = ctypes.c_bool

    def found(solver: Any, term: Any, forbidden: Any = None) -> tuple[int, int] | None:
        low, high = ctypes.c_int64(), ctypes.c_int64()
        without = None if forbidden is None else forbidden.as_ast().value
        known = library.atune_range(
            solver.ctx.ref().value, solver.solver.value, term.as_ast().value, without, low, high
        )
        return (low.value, high.value) if known else None

    return found


def by_z3(solver: Any, term: Any) -> list[int]:
    """Return the term's values as tilelang has z3 find them."""
    found = []
    solver.set("rlimit", LIMIT)
    solver.push()
    while solver.check() == z3.sat:
        found.append(solver.model().eval(term, model_completion=True).as_long())
        solver.add(term != found[-1])
    solver.pop()
    return sorted(found)


def solver_of(*constraints: Any) -> Any:
    solver = z3.Solver()
    solver.add(*constraints)
    assert solver.check() == z3.sat
    return solver


x, y, b = z3.Int("x"), z3.Int("y"), z3.Bool("b")
RANGE = (x >= 0, x < 96)


@pytest.mark.parametrize(
    "constraints",
    [
        (),
        (z3.And(z3.IntVal(-(2**31)) <= x, x <= 2**31 - 1), z3.IntVal(64) <= x),
        (z3.Not(x < 40), z3.Not(z3.IntVal(90) <= x)),
        (z3.Not(z3.Not(x > 40)), z3.And(x <= 70, z3.Not(x >= 70), z3.And(x > 7))),
        (y >= 0, z3.Not(y > 5), y < 3, z3.Int("z") >= 0),
        (z3.BoolVal(True), x >= 17, x <= 17),
    ],
    ids=str,
)
def test_a_range_is_what_z3_finds(range_of: Range, constraints: Any) -> None:
    solver = solver_of(*RANGE, *constraints)
    low, high = range_of(solver, x) or (0, -1)
    assert list(range(low, high + 1)) == by_z3(solver, x) != []
    forbidden = x != low
    solver.add(forbidden)
    assert range_of(solver, x) is None and range_of(solver, x, forbidden) == (low, high)


def test_random_ranges_are_what_z3_finds(range_of: Range) -> None:
    random_ = random.Random(0)

    def bounds(variable: Any, low: int, high: int) -> list[Any]:
        least, most = z3.IntVal(low), z3.IntVal(high)
        return [
            random_.choice([variable >= least, z3.Not(variable < least), least <= variable, z3.Not(least > variable)]),
            random_.choice([variable <= most, variable < high + 1, z3.Not(variable > most), most >= variable]),
        ]

    for _ in range(60):
        low = random_.randint(-40, 40)
        width = random_.choice([1, 2, 32, 100])
        others = [z3.Int(f"other{i}") for i in range(random_.randint(0, 8))]
        constraints = [bound for other in others for bound in bounds(other, 0, random_.randint(0, 2**20))]
        constraints += bounds(x, low, low + width - 1) + bounds(x, low - random_.randint(0, 9), low + width + 5)
        random_.shuffle(constraints)
        solver = solver_of(*constraints)
        assert range_of(solver, x) == (low, low + width - 1)
        assert by_z3(solver, x) == list(range(low, low + width))


@pytest.mark.parametrize(
    "constraints",
    [
        (*RANGE, x % 32 == 0),
        (*RANGE, x / 32 >= 1),
        (*RANGE, x != 5),
        (*RANGE, x == 5),
        (*RANGE, 2 * x < 60),
        (*RANGE, z3.Or(x < 3, x > 70)),
        (*RANGE, z3.Not(z3.And(x > 3, x > 5))),
        (*RANGE, z3.Implies(x > 10, x > 20)),
        (*RANGE, b),
        (*RANGE, y >= 0, x + y < 10),
        (*RANGE, x < y),
        (*RANGE, y * y * y == 8),  # another variable's, over which z3 may run into the limit
        (*RANGE, z3.Exists([y], x == 2 * y)),
        (*RANGE, z3.ToReal(x) < 2.5),
        (*RANGE, z3.Int2BV(x, 8) & 1 == 0),
        (*RANGE, z3.Function("f", z3.IntSort(), z3.IntSort())(x) >= 0),
        (*RANGE, x < 2**41),
        (*RANGE, *(x < 100 + n for n in range(59))),
        (x >= 0,),
        (x <= 0,),
        (x >= 0, x < 1153),
    ],
    ids=str,
)
def test_everything_else_is_left_to_z3(range_of: Range, constraints: Any) -> None:
    assert range_of(solver_of(*constraints), x) is None


@pytest.mark.parametrize("term", [z3.IntVal(7), x + 0 * y, x * 4, z3.If(b, 1, 0), z3.Real("r")], ids=str)
def test_a_term_that_is_no_variable_is_left_to_z3(range_of: Range, term: Any) -> None:
    assert range_of(solver_of(term >= 0, term < 10), term) is None


def test_z3_finds_all_of_the_largest_range_within_its_limit(range_of: Range) -> None:
    """As many threads and variables as are answered for."""
    context = z3.Context()  # as new as tilelang's: z3 remembers what others asked
    term, *others = (z3.Int(name, context) for name in ("x", *(f"other{i}" for i in range(29))))
    solver = z3.Solver(ctx=context)
    solver.add(term >= 0, term < 1152, *(z3.And(v >= -(2**31), v <= 2**31 - 1) for v in others))
    assert solver.check() == z3.sat and range_of(solver, term) == (0, 1151)
    assert by_z3(solver, term) == list(range(1152))
    solver.add(others[0] < 5)
    assert range_of(solver, term) is None


BRANCHES = """
import tilelang.language as T

import atune


def kernel(cubes):
    @T.prim_func
    def main(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
        with T.Kernel(1, threads=1024):
            S = T.alloc_shared((1024,), "float32")
            R = T.alloc_shared((1024,), "float32")
            tx = T.get_thread_binding()
            S[tx] = A[tx]
            R[tx] = A[tx] + 1.0
            if tx >= 512:
                S[tx] = A[tx] * 2.0
                T.sync_threads()
                B[tx] = S[1535 - tx]
            if cubes:
                if tx < 512 and (tx // 32) * (tx // 32) * (tx // 32) % 16 < 7:
                    R[tx] = A[tx] * 3.0
                    T.sync_threads()
                    B[tx] = R[511 - tx]

    return main


WORKLOAD = atune.Workload(kernel, [{"cubes": True}], inputs=[None, None], name="branches")
"""


Lowered = tuple[int, int, bool, str, str]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Lowered, Lowered]]:
    """Lower each in a process of its own, as workers do and as tilelang does: how often z3 was spared a value, and a
    question, if it was done again, the source and the key.
    """
    folder = tmp_path_factory.mktemp("lowered")
    (folder / "branches.py").write_text(BRANCHES)
    gemm = {"block_M": 256, "block_N": 128, "block_K": 32, "num_stages": 2, "swizzle": False}
    what: list[tuple[str, dict[str, Any]]] = [
        *((str(EXAMPLES / "gemm.py"), {**gemm, "threads": threads}) for threads in (128, 512)),
        *((str(folder / "branches.py"), {"cubes": cubes}) for cubes in (False, True)),
    ]
    found = []
    for n, off in enumerate(("0", "1")):
        run_dir = folder / str(n)
        run_dir.mkdir()
        environment = {**os.environ, SERVER_FOLDER: str(run_dir), "ATUNE_ASK_Z3": off, z3_tables.OFF: off}
        command = [sys.executable, "-c", LOWER, str(run_dir), json.dumps(what)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=True)
        *_, shrunk, last = done.stdout.splitlines()
        assert shrunk == str(off == "0" and known())
        found.append(json.loads(last))
    return list(zip(*found, strict=True))


@pytest.mark.parametrize(("which", "threads"), [(0, 128), (1, 512)])
def test_the_code_is_the_same(kernels: list[tuple[Lowered, Lowered]], which: int, threads: int) -> None:
    (spared, found, again, source, key), (*none, _, as_tilelang, other) = kernels[which]
    assert spared > threads and found > 50 and not again and none == [0, 0] and key != other
    assert source == as_tilelang and "__launch_bounds__" in source


@pytest.mark.parametrize(("which", "cubes"), [(2, False), (3, True)])
def test_where_z3_may_run_into_its_limit_it_counts_and_decides_the_code(
    kernels: list[tuple[Lowered, Lowered]], which: int, cubes: bool
) -> None:
    """Also where it was spared something before: then the kernel is lowered again."""
    (spared, _, again, source, _), (*_, as_tilelang, _) = kernels[which]
    assert spared >= 511 and again == cubes
    assert source == as_tilelang and source.count("__sync_thread_partial") >= 1 + cubes, source


class Doubting:
    """Stands for the library: has `doubts` in turn, one a lowering, and notes what each left to z3."""

    def __init__(self, *doubts: int) -> None:
        self.doubts = list(doubts)
        self.doubt, self.off = 0, (False, False)
        self.left = list[tuple[bool, bool]]()

    def atune_counting_off(self, counts: bool, witnesses: bool) -> None:
        self.off = counts, witnesses

    def atune_counting_doubtful(self) -> int:
        doubt, self.doubt = self.doubt, 0
        return doubt

    def lower(self) -> int:
        self.left.append(self.off)
        self.doubt = self.doubts.pop(0)
        if self.doubt:
            raise ValueError("cut short")
        return len(self.left)


NOTHING, QUESTIONS, ALL = (False, False), (False, True), (True, True)


@pytest.mark.parametrize(
    ("doubts", "left"),
    [
        ((0,), [NOTHING]),
        ((2, 0), [NOTHING, QUESTIONS]),
        ((1, 0), [NOTHING, ALL]),
        ((3, 0), [NOTHING, ALL]),
        ((2, 1, 0), [NOTHING, QUESTIONS, ALL]),
    ],
)
def test_what_is_in_doubt_is_lowered_again_and_left_to_z3(
    monkeypatch: pytest.MonkeyPatch, doubts: tuple[int, ...], left: list[tuple[bool, bool]]
) -> None:
    library = Doubting(*doubts)
    monkeypatch.setattr(counting, "_library", library)
    monkeypatch.setattr(counting, "_worth", counting.Worth())
    assert counting.settled(library.lower) == len(left)
    assert (library.left, library.off) == (left, NOTHING)


def test_what_raises_without_a_doubt_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Doubting(2, 1, 1)  # a lowering without the library has no doubts; this one raises
    monkeypatch.setattr(counting, "_library", library)
    monkeypatch.setattr(counting, "_worth", counting.Worth())
    with pytest.raises(ValueError, match="cut short"):
        counting.settled(library.lower)
    assert (library.left, library.off) == ([NOTHING, QUESTIONS, ALL], NOTHING)


def test_a_run_whose_kernels_come_to_be_in_doubt_does_without_witnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each doubt costs a lowering, more than two witnessed ones spare."""
    library = Doubting(*[2, 0] * 2, 0, 0, *[0] * 7, *[2, 0] * 3, 0)
    monkeypatch.setattr(counting, "_library", library)
    monkeypatch.setattr(counting, "_worth", counting.Worth())
    for _ in range(4):
        counting.settled(library.lower, "a run")
    assert library.left == [*[NOTHING, QUESTIONS] * 2, QUESTIONS, QUESTIONS]
    library.left.clear()
    for _ in range(11):
        counting.settled(library.lower, "another")
    assert library.left == [*[NOTHING] * 7, *[NOTHING, QUESTIONS] * 3, NOTHING]


@pytest.mark.parametrize("off", [counting.OFF, z3_tables.OFF])
def test_what_turns_one_of_them_off_is_part_of_the_key(off: str) -> None:
    assert lowering._LOWERS.match(off)


def test_without_a_compiler_z3_counts(tmp_path: Path) -> None:
    """A compiler that is not there, that fails, or that makes something else: nothing else changes."""
    script = "from atune.stages import counting; counting.begin(); counting.load(); print('went on')"
    said = []
    for n, line in enumerate((None, "exit 3", 'for last in "$@"; do [ "$out" = -o ] && : > "$last"; out=$last; done')):
        folder = tmp_path / str(n)
        folder.mkdir()
        for name in ("gcc", "cc") if line else ():
            (folder / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / name).chmod(0o755)
        environment = {**os.environ, "PATH": str(folder), SERVER_FOLDER: str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
        said.append(done.stderr)
    assert said[0] == "" and "asked everything: the compiler ended with status 3" in said[1]
    assert "asked everything" in said[2] and "counting.so" in said[2]
    assert not list(tmp_path.glob("counting.so"))


def test_what_is_loaded_already_stays(tmp_path: Path) -> None:
    """Once tilelang's libraries are there, nothing can come before them."""
    script = """if True:
        import sys
        from atune.stages.accelerators import counting
        sys.modules["tvm"] = sys
        counting.begin()
        assert counting._build is None
        del sys.modules["tvm"]
        counting.begin()
        counting.load()
        assert counting._library is not None
    """
    environment = {**os.environ, SERVER_FOLDER: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
