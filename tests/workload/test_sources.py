"""The text that a workload is loaded from: read once, and the same for whoever loads it later."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atune.workload import sources
from atune.workload.sources import Module, changed, mentioned, pin, pinned, written_since


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user's, whose parts import each other relatively."""
    folder = tmp_path / f"package_{abs(hash(tmp_path))}"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .one import value\n")
    (folder / "one.py").write_text("from . import two\n\ndef value():\n    return two.VALUE\n")
    (folder / "two.py").write_text("VALUE = 1\n")
    (folder / "unused.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sources, "_finder", sources._Finder())
    before = set(sys.modules)
    yield folder
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, sources._Finder)]
    for name in set(sys.modules) - before:
        if name.startswith("package_"):
            del sys.modules[name]


def forget(package: Path) -> None:
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def imported_value(package: Path) -> int:
    value: int = __import__(package.name).value()
    return value


def test_what_was_imported_once_is_loaded_again_as_it_was(package: Path) -> None:
    pin({})
    assert imported_value(package) == 1
    names = {name.removeprefix(package.name) for name in pinned()}
    assert names == {"", ".one", ".two"}
    (package / "two.py").write_text("VALUE = 2\n")
    (package / "one.py").unlink()
    forget(package)
    assert imported_value(package) == 1
    assert "two.VALUE" in inspect.getsource(sys.modules[package.name].value)
    assert changed(pinned()) == [str(package / "one.py"), str(package / "two.py")]


def test_compiled_files_of_an_older_text_are_not_loaded(package: Path) -> None:
    """Of the same second and the same length, they pass for the newer one's; Python by itself takes them."""
    two = package / "two.py"
    code = f"import {package.name}; print({package.name}.value())"
    command, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(package.parent)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    os.utime(two, (1e9, 1e9))
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "1\n"
    two.write_text("VALUE = 2\n")
    os.utime(two, (1e9, 1e9))
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "1\n"
    pin({})
    assert imported_value(package) == 2


def test_a_module_mentioned_by_one_that_is_mentioned_counts(package: Path) -> None:
    imported_value(package)
    found = mentioned([f"{package.name}.one"])
    assert {f"{package.name}{part}" for part in ("", ".one", ".two")} <= found.keys()
    assert f"{package.name}.unused" not in found and "pytest" not in found and "atune" not in found
    assert found[package.name].package and not found[f"{package.name}.two"].package
    assert found[f"{package.name}.two"].text == b"VALUE = 1\n"


def test_a_text_names_the_modules_that_it_imports(package: Path) -> None:
    imported_value(package)
    assert f"{package.name}.two" in mentioned([], [f"from {package.name} import two"])
    assert not [name for name in mentioned([], ["nothing"]) if name.startswith(package.name)]


def test_a_kept_module_that_does_not_compile_says_so_by_its_file(package: Path) -> None:
    pin({f"{package.name}_broken": Module("/nowhere/broken.py", False, b"def")})
    with pytest.raises(SyntaxError, match=r"broken\.py"):
        __import__(f"{package.name}_broken")


def test_what_was_written_beside_the_files_is_named_but_for_journals(package: Path) -> None:
    pin({})
    imported_value(package)
    for path in package.iterdir():
        os.utime(path, (1e9, 1e9))
    for name in ("data.json", "journal.jsonl"):
        (package / name).write_text("1")
    assert written_since(1.5e9, pinned()) == [str(package / "data.json")]


def test_what_the_finder_asks_is_known_before_it_is_used() -> None:
    """sysconfig imports its data at the first question. In Python 3.13 the finder must not ask during that import."""
    code = (
        "import sys; from atune.workload.sources import pin; pin({}); known = set(sys.modules); "
        "import colorsys; print(*sorted(sys.modules.keys() - known))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sources.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "colorsys\n", "")
