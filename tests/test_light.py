"""`make test-light` leaves out what needs tilelang or torch, and nothing that is not there."""

from __future__ import annotations

import ast
from pathlib import Path

from light import NEEDS_TILELANG, TESTS, needs_tilelang

HEAVY = {"tilelang", "torch", "tvm"}


def imported(path: Path) -> set[str]:
    """Return the packages and modules that `path` imports when it is loaded, and those of helpers beside it."""
    found, waiting = set(), [path]
    while waiting:
        for node in ast.parse(waiting.pop().read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            new = {name.partition(".")[0] for name in names} - found
            waiting += [helper for name in new if (helper := TESTS / f"{name}.py").is_file()]
            found |= new
    return found


def test_what_is_left_out_is_there() -> None:
    names = [path.stem for path in TESTS.rglob("*") if path.is_dir() or path.match("test_*.py")]
    assert [name for name in NEEDS_TILELANG if name not in names] == []


def test_modules_that_import_it_are_left_out() -> None:
    modules = [path for path in TESTS.rglob("test_*.py") if imported(path) & HEAVY]
    assert len(modules) > 20
    assert [path.name for path in modules if not needs_tilelang(path)] == []
