"""Threads counted without z3: the same counts, hence the same code, and z3 wherever it takes a solver."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atune.stages import c_library, counting

z3: Any = pytest.importorskip("z3")
Z3 = Path(next(iter(importlib.util.find_spec("z3").submodule_search_locations or ())))  # type: ignore[union-attr]
EXAMPLES = Path(__file__).parents[1] / "examples"
LOWER = """
import json, os, sys, tempfile
from atune.stages import counting
counting.begin()
counting.load()
import msgspec
from atune.candidate import Candidate, config_key
from atune.device import Target
from atune.protocol import Session
from atune.settings import BenchmarkSettings, CompileSettings
from atune.stages import lowering, session
from atune.workload import FileRef
settings = Session(
    FileRef(sys.argv[1], "WORKLOAD"), Target("cuda", "sm_90a"), CompileSettings(), BenchmarkSettings(), sys.argv[2]
)
session.begin(msgspec.msgpack.encode(settings))
config = json.loads(sys.argv[3])
lowered = lowering.lower(Candidate(0, config_key(config), config))
source = msgspec.msgpack.decode(lowered.blob, type=lowering.Blob).source
print(json.dumps([counting.answered(), source]))
"""


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, Any], list[int] | None]:
    """Return what counts values of a z3 term beside a solver's constraints; it gives None where z3 is to count."""
    path = str(tmp_path_factory.mktemp("counting") / "counting.so")
    subprocess.run(c_library.command(counting.SOURCE, path, f"-I{Z3 / 'include'}", "-Wall", "-Werror"), check=True)
    library = ctypes.CDLL(path)
    assert library.atune_counting_begin(os.fsencode(Z3 / "lib" / "libz3.so")) == 1
    pointer = ctypes.c_void_p
    library.atune_count_values.argtypes = [pointer, pointer, pointer, ctypes.POINTER(ctypes.c_int64)]

    def values(solver: Any, term: Any) -> list[int] | None:
        found = (ctypes.c_int64 * 4096)()
        n = library.atune_count_values(solver.ctx.ref().value, solver.solver.value, term.as_ast().value, found)
        return None if n < 0 else list(found[:n])

    return values


def by_z3(solver: Any, term: Any) -> list[int]:
    """Return the term's values as tilelang has z3 find them."""
    found = []
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


x, y = z3.Int("x"), z3.Int("y")
RANGE = (x >= 0, x < 96)


@pytest.mark.parametrize(
    "constraints",
    [
        (),
        (x % 32 == 0,),
        (x / 32 == 1, z3.Not(x < 40)),
        (z3.And(z3.IntVal(-(2**31)) <= x, x <= 2**31 - 1), z3.IntVal(64) <= x),
        (z3.Or(x < 3, x == 70, z3.And(x > 90, x % 2 == 1)),),
        (z3.Distinct(x, 5), -x <= -4, 2 * x - 7 < 60 + x),
        (z3.If(x % 4 < 2, x / 4, -x) >= 3,),
        (z3.Implies(x > 10, x == 20), (x - 50) / 7 != -6, (x - 50) % 7 != 3),
        (y >= 0, y < 5, y * y * y == 8),  # another variable's own business
        (z3.BoolVal(True), x == x),
        (x == 17,),
    ],
    ids=str,
)
def test_values_are_those_that_z3_finds(count: Callable[[Any, Any], list[int] | None], constraints: Any) -> None:
    solver = solver_of(*RANGE, *constraints)
    assert count(solver, x) == by_z3(solver, x) != []


def test_values_of_random_constraints_are_those_that_z3_finds(count: Callable[[Any, Any], list[int] | None]) -> None:
    random_ = random.Random(0)

    def term(depth: int) -> Any:
        if depth == 0:
            return random_.choice([x, x, z3.IntVal(random_.randint(-9, 40))])
        a, b, positive = term(depth - 1), term(depth - 1), z3.IntVal(random_.randint(1, 9))
        return random_.choice([a + b, a - b, a * 3, a / positive, a % positive, -a, z3.If(a < b, a, b)])

    def formula(depth: int) -> Any:
        if depth == 0:
            a, b = term(2), term(1)
            return random_.choice([a < b, a <= b, a > b, a >= b, a == b, a != b])
        a, b = formula(depth - 1), formula(depth - 1)
        return random_.choice([z3.And(a, b), z3.Or(a, b), z3.Not(a), z3.Implies(a, b)])

    counted = 0
    for _ in range(150):
        solver = z3.Solver()
        solver.add(x >= 0, x < 24, formula(2))
        if solver.check() == z3.sat:
            assert count(solver, x) == by_z3(solver, x), solver
            counted += 1
    assert counted > 75


@pytest.mark.parametrize(
    "constraints",
    [
        (*RANGE, y >= 0, x + y < 10),  # tied to another variable
        (*RANGE, z3.Exists([y], x == 2 * y)),
        (x >= 0,),
        (x >= 0, x < 10**6),
        (x % 7 == 3,),
        (*RANGE, 10 / x == 2),  # which z3 lets be anything where x is 0
        (*RANGE, z3.ToReal(x) < 2.5),
        (*RANGE, z3.Int2BV(x, 8) & 1 == 0),
        (*RANGE, z3.Function("f", z3.IntSort(), z3.IntSort())(x) == 0),
        (*RANGE, x * (2**62) > 5),  # more than 64 bits hold
    ],
    ids=str,
)
def test_what_takes_a_solver_is_left_to_it(count: Callable[[Any, Any], list[int] | None], constraints: Any) -> None:
    assert count(solver_of(*constraints), x) is None


def lower(config: dict[str, Any], folder: Path, **environment: str) -> tuple[int, str]:
    """Lower the GEMM in a process of its own; return how often z3 was spared, and the source."""
    command = [sys.executable, "-c", LOWER, str(EXAMPLES / "gemm.py"), str(folder), json.dumps(config)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment}, check=True
    )
    answered, source = json.loads(done.stdout.splitlines()[-1])
    return answered, source


@pytest.mark.parametrize("threads", [128, 512])
def test_the_code_is_the_same(tmp_path: Path, threads: int) -> None:
    shape = {"block_M": 256, "block_N": 128, "block_K": 32, "num_stages": 2, "threads": threads, "swizzle": False}
    spared, source = lower(shape, tmp_path)
    none, as_tilelang = lower(shape, tmp_path, ATUNE_COUNT_BY_Z3="1")
    assert spared > threads and none == 0
    assert source == as_tilelang and "__launch_bounds__" in source


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
        environment = {**os.environ, "PATH": str(folder)}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
        said.append(done.stderr)
    assert said[0] == "" and "counted by z3: the compiler ended with status 3" in said[1]
    assert "counted by z3" in said[2] and "counting.so" in said[2]


def test_what_is_loaded_already_stays(tmp_path: Path) -> None:
    """Once tilelang's libraries are there, nothing can come before them."""
    script = "import tilelang; from atune.stages import counting; counting.begin(); counting.load(); "
    done = subprocess.run(
        [sys.executable, "-c", script + "print(counting.answered())"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0"
