"""A kernel that changes while its source stays: whatever it reads, no door takes an old result or an old library."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tilelang
import torch
from decorated import TUNING, scale

import atune
from atune.compat.tilelang import autotune
from atune.errors import JournalError
from atune.journal.events import BenchmarkStarted
from atune.journal.reader import read

pytestmark = pytest.mark.filterwarnings("ignore:atune does not use the result of:RuntimeWarning")
HELPER = """
import tilelang.language as T

FACT = VALUE

@T.macro
def store(B, i, value):
    B[i] = value * VALUE

def f5(): return VALUE
def f4(): return f5()
def f3(): return f4()
def f2(): return f3()
def f1(): return f2()
"""
KERNELS = """
import os
import tilelang.language as T
import HELPER as helper
from HELPER import f1, store

def times(N, block, factor):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * factor
    return main

def module_constant(N, block: int = 64): return times(N, block, helper.FACT)
def five_calls_deep(N, block: int = 64): return times(N, block, f1())
def environment(N, block: int = 64): return times(N, block, float(os.environ["FACTOR_OF_A_TEST"]))

def imported_macro(N, block: int = 64):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.serial(block):
                store(B, bx * block + i, A[bx * block + i])
    return main
"""
FORMS = re.findall(r"def (\w+)\(N, block: int", KERNELS)
BEFORE, AFTER = 2.0, 15.0
"""Of other lengths: files compiled before are told from newer ones by seconds and length."""


class Program:
    """Modules of kernels, and a helper that is edited. Programs that are alike follow each other in this process."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self.folder, self._environment = folder, environment
        self.helper = f"helper_of_{folder.name.replace('-', '_')}"
        self.module: ModuleType
        self.begins(BEFORE)

    def begins(self, factor: float) -> None:
        """Start as a new program, whose helper has this factor."""
        self._environment.setenv("FACTOR_OF_A_TEST", str(factor))
        (self.folder / f"{self.helper}.py").write_text(HELPER.replace("VALUE", str(factor)))
        (self.folder / f"main_{self.helper}.py").write_text(KERNELS.replace("HELPER", self.helper))
        for name in (self.helper, f"main_{self.helper}"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        self.module = importlib.import_module(f"main_{self.helper}")

    def workload(self, form: str) -> atune.Workload:
        return atune.Workload(getattr(self.module, form), {"block": [32, 64]}, arguments={"N": 64})

    def journal(self, form: str) -> str:
        return str(self.folder / f"{form}.jsonl")


QUICK = atune.BenchmarkSettings(n_warmup=1, n_repeat=2, n_final=0)
OPTIONS: dict[str, Any] = {"target": "c", "benchmark": QUICK, "progress": False}


def decorated(program: Program, form: str, **missing: Any) -> Any:
    kernel = atune.autotune(space={"block": [32, 64]}, target="c", tuning=TUNING, **missing)
    return kernel(getattr(program.module, form))(64)


def cached(program: Program, form: str, **missing: Any) -> Any:
    return atune.run(program.workload(form), cached=True, **missing, **OPTIONS).kernel


def drop_in(program: Program, form: str) -> Any:
    kernel = tilelang.jit(getattr(program.module, form), out_idx=[-1], target="c")
    return autotune(configs=[{"block": 32}, {"block": 64}], warmup=1, rep=1)(kernel)(64)


def begun(program: Program, form: str, budget: int = 1) -> Any:
    return atune.run(program.workload(form), journal=program.journal(form), budget=budget, **OPTIONS).kernel


Door = Callable[..., Any]
DOORS: tuple[Door, ...] = (decorated, cached, drop_in)


def factor_of(kernel: Any) -> float:
    return float(kernel(torch.ones(64))[0])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program after an edit of its helper: a program before tuned each form at each door."""
    folder = tmp_path_factory.mktemp("forms")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ATUNE_CACHE_DIR", str(folder / "cache"))
        environment.setenv("TILELANG_CACHE_DIR", str(folder / "drop-in"))
        environment.syspath_prepend(str(folder))
        found = Program(folder, environment)
        for form in FORMS:
            assert {factor_of(door(found, form)) for door in (*DOORS, begun)} == {BEFORE}
        found.begins(AFTER)
        yield found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_the_old_kernel(program: Program, door: Door, form: str) -> None:
    assert factor_of(door(program, form)) == AFTER


@pytest.mark.parametrize("form", FORMS)
def test_a_journal_does_not_mix_two_kernels(program: Program, form: str) -> None:
    kept = Path(program.journal(form)).read_bytes()
    with pytest.raises(JournalError, match=r"kernel: .* changed"):
        atune.run_resume(program.journal(form), program.workload(form), budget=2)
    with pytest.raises(JournalError, match=r"kernel: .* changed"):
        begun(program, form, budget=2)
    assert Path(program.journal(form)).read_bytes() == kept


def test_what_is_the_same_is_still_found(program: Program) -> None:
    """And of two results the one of the kernel as it is, also where it is not the newest."""
    form = "five_calls_deep"  # which the fingerprint does not see
    for door in (decorated, cached):
        assert factor_of(door(program, form)) == AFTER
        program.begins(BEFORE)
        assert factor_of(door(program, form, on_miss="error")) == BEFORE
        program.begins(AFTER)
        assert factor_of(door(program, form, on_miss="error")) == AFTER


def test_what_an_earlier_kernel_measured_is_not_taken_over(program: Program) -> None:
    """Nor what the cache has of a part of the space."""
    form, wide = "five_calls_deep", {"block": [16, 32, 64]}
    kernel = atune.autotune(space=wide, target="c", tuning=TUNING)(getattr(program.module, form))
    program.begins(7.0)
    other = atune.autotune(space=wide, target="c", tuning=TUNING)(getattr(program.module, form))
    for one, fresh in ((kernel, True), (other, True), (kernel, False)):
        one.forget()
        result = one.tune(64)
        measured = {event.index for event in read(result.journal) if isinstance(event, BenchmarkStarted)}
        assert result.cache_hit != fresh and (measured == {0, 1, 2} or one is kernel)
    program.begins(AFTER)


def test_what_cannot_be_compared_is_named_and_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler may read files of the user's."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    work = atune.Workload(scale, {"block": [16]}, arguments={"n": 64})
    options = {**OPTIONS, "compile": atune.CompileSettings(flags=("-I", str(tmp_path))), "cached": True}
    atune.run(work, **options)
    with pytest.warns(RuntimeWarning, match="does not use .*, because its journal does not identify the kernel"):
        assert not atune.run(work, **options).cache_hit
