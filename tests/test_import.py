"""`import atune` is light and does nothing behind the caller's back."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import atune

ROOT = Path(atune.__file__).parents[1]
NAMES = (
    "BenchmarkSettings", "CompileSettings", "NoWinner", "Space", "TuneResult", "Tuner", "Workload", "autotune",
    "Problems", "clear_cache", "compile_all", "measure", "measure_many", "pick", "replay", "resume", "run",
    "run_resume", "run_set", "shutdown", "tune", "tune_set", "tunings", "warm",
)  # fmt: skip
MODULES = ("bundle", "errors", "events", "layout", "results")
IMPORT = """
# Seconds of the processor are counted in those of an empty loop, of about 0.2 s: a busy machine slows down both.
import json, logging, os, sys, time
before = set(os.listdir("."))
started = time.process_time()
import atune
seconds = time.process_time() - started
names = [name for name in atune.__all__ if getattr(atune, name) is None]
all_seconds = time.process_time() - started
for _ in range(10**7): pass
loop_seconds = time.process_time() - started - all_seconds
names_of_heavy = "tilelang torch tvm tvm_ffi cuda pynvml numpy structlog".split()
heavy = [m for m in names_of_heavy if m in sys.modules]
print(json.dumps({
    "loops": seconds / loop_seconds, "all_loops": all_seconds / loop_seconds, "heavy": heavy, "names": names,
    "handlers": len(logging.root.handlers), "files": sorted(set(os.listdir(".")) - before),
}))
"""


def imported(tmp_path: Path) -> dict[str, object]:
    runs = [
        subprocess.run(
            [sys.executable, "-c", IMPORT], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    return min((json.loads(run.stdout) for run in runs), key=lambda found: float(found["all_loops"]))


def test_import_is_light_and_silent(tmp_path: Path) -> None:
    found = imported(tmp_path)
    assert found["heavy"] == []
    assert float(str(found["loops"])) < 1
    assert float(str(found["all_loops"])) < 2.5  # every public name used
    assert found["handlers"] == 0
    assert found["files"] == []


def test_all_is_what_the_page_says() -> None:
    """The names for type checkers and the names loaded on first use are the same."""
    tree = ast.parse(Path(atune.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = [alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(typed) == sorted([*atune.__all__, *MODULES])
    for name in atune.__all__:
        assert getattr(atune, name).__module__.startswith("atune.")
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        homes = [atune._MODULE_OF.get(alias.name, "atune") for alias in node.names]
        assert homes == [node.module]


def test_a_user_sees_the_public_names_and_no_import() -> None:
    """The one list of them in the tests: a new name at the top is a decision, and not an accident."""
    import atune.frontends.cli.main

    shown = {name for name in dir(atune) if not name.startswith("__")}
    assert shown == {*NAMES, *MODULES} and "__version__" in dir(atune)
    assert sorted(NAMES) == atune.__all__


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_names_is_there_without_its_import(module: str) -> None:
    code = f"import atune; print(atune.{module}.__name__)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert run.stdout == f"atune.{module}\n", run.stderr
