"""Defining a kernel, and importing the drop-in, start the processes that tuning needs, where something may tune."""

from __future__ import annotations

import os
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decorated
import pytest

import atune
import atune.compat.tilelang  # it asks for the processes, too, when it is first imported
from atune.frontends.api.cached_tune import CachedWork
from atune.frontends.decorator import prewarm
from atune.journal.events import Event
from atune.workers.storage.result_cache import ResultCache

Define = Callable[..., int]
OLD, NEW = 1_700_000_000, 1_800_000_000
Import = Callable[[], int]
PROGRAM = """from pathlib import Path
from atune.compat.tilelang import environment
from atune.frontends.decorator import prewarm
prewarm.for_program(environment.cache_root(), "/nowhere")
"""


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Define:
    """A function that decorates a kernel, and returns how many times that asked for the processes."""

    def decorate(kernel: Any = decorated.scale_jit, **options: Any) -> int:
        asked: list[bool] = []
        monkeypatch.setattr(prewarm, "warm_early", lambda: asked.append(True))
        options = {"cache": tmp_path, "reference": decorated.doubled, **options}
        atune.autotune(space={"factor": [1, 2], "block": [16, 64]}, **options)(kernel)
        return len(asked)

    return decorate


def keep_result(folder: Path) -> None:
    """Have the cache in `folder` hold a result of `decorated.scale`."""
    events: list[Event] = []
    workload = decorated.workload()
    atune.run(workload, target="c", benchmark=decorated.QUICK, on_event=events.append)
    ResultCache(folder).put(CachedWork(workload, target="c").key, events)


def test_a_kernel_without_a_result_starts_them(define: Define) -> None:
    assert define() == 1
    assert define(cache=False) == 1


@pytest.mark.parametrize("on_miss", ["default", "error"])
def test_a_kernel_that_no_call_tunes_starts_none(define: Define, on_miss: str) -> None:
    assert define(on_miss=on_miss) == 0


def test_a_kernel_with_a_result_starts_none(define: Define, tmp_path: Path) -> None:
    """A program that always finds its results pays nothing."""
    keep_result(tmp_path)
    assert define() == 0
    assert define(cache=False) == 1
    assert define(name="another") == 1


def test_an_edited_kernel_starts_them_again(define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_result(tmp_path)
    monkeypatch.setattr(prewarm, "kernel_fingerprint", lambda kernel: "another source")
    assert define() == 1


# The import of the drop-in


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program's file, written long ago."""
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    os.utime(file, (OLD, OLD))
    main = types.ModuleType("__main__")
    main.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return file


@pytest.fixture
def runs(program: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """A function that runs the file, and returns how many times that asked for the processes."""
    asked: list[bool] = []
    monkeypatch.setattr(prewarm, "warm_early", lambda: asked.append(True))

    def run() -> int:
        asked.clear()
        runpy.run_path(str(program))
        return len(asked)

    return run


def use_cache(tmp_path: Path, at: int, suffix: str = "") -> None:
    path = Path(f"{ResultCache(tmp_path / 'cache' / 'atune').path}{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at, at))


def test_a_program_that_is_older_than_the_last_use_of_the_cache_starts_none(runs: Import, tmp_path: Path) -> None:
    """It finds its results, and pays nothing."""
    assert runs() == 1
    use_cache(tmp_path, OLD - 1)
    assert runs() == 1
    use_cache(tmp_path, NEW, "-wal")
    assert runs() == 0


def test_an_edited_program_or_module_with_the_import_starts_them(
    runs: Import, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(tmp_path, NEW)
    main = tmp_path / "main.py"  # imports the program's file
    main.touch()
    os.utime(main, (OLD, OLD))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(main))
    assert runs() == 0
    os.utime(program, (NEW + 1, NEW + 1))
    assert runs() == 1
    os.utime(program, (OLD, OLD))
    os.utime(main, (NEW + 1, NEW + 1))
    assert runs() == 1


def test_a_program_whose_text_is_no_file_starts_them(
    runs: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: nobody knows when it was written."""
    use_cache(tmp_path, NEW)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "cell.py"))
    assert runs() == 1
