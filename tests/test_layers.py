"""The folders of `atune/`: which may import which, read off the sources, and what docs/architecture.md says of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import atune

PACKAGE = Path(atune.__file__).parent
HEAVY = {"tilelang", "torch", "tvm", "tvm_ffi", "pynvml", "cuda"}
MAY_BE_HEAVY = ("bundle", "stages", "compat")
PUBLIC = {"__init__", "__main__", "errors", "events", "layout", "results", "sets", "version"}
"""Modules of the package's own folder: public import paths, and what all others may import."""


def modules() -> dict[str, Path]:
    """Return the sources by dotted name without ``atune.``; a package goes by its folder's name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix("__init__").removesuffix(".")] = path
    return found


MODULES = modules()


def folder_of(name: str) -> str:
    """Return the folder of a module; modules of the package's own folder stand for themselves."""
    path = MODULES[name]
    inside = path.parent.relative_to(PACKAGE).as_posix().replace("/", ".")
    return f"({name or 'atune'})" if inside == "." else inside


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Return (module, whether at the top of the file) of every import that is not for type checking alone."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    nested = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in nested) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", id(node) not in nested) for alias in node.names]
    return found


def ours(name: str) -> str | None:
    """Return our module that an import names, without the ``atune.`` before it."""
    if name != "atune" and not name.startswith("atune."):
        return None
    inner = name.removeprefix("atune").removeprefix(".")
    while inner and inner not in MODULES:
        inner = inner.rpartition(".")[0]
    return inner


def folder_imports() -> dict[str, set[str]]:
    """Return which folders each folder imports, from inside functions too."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        mine = found.setdefault(folder_of(name), set())
        for imported, _ in imports(path):
            inner = ours(imported)
            if inner is not None and folder_of(inner) != folder_of(name):
                mine.add(folder_of(inner))
    return found


def test_the_package_has_few_modules_of_its_own() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == PUBLIC


ALONE = {"bundle"}
"""Folders beside those that make up the tuner: they import nothing else of atune, and are read without it."""


def test_what_stands_alone_imports_nothing_else() -> None:
    for folder, imported in folder_imports().items():
        top = folder.partition(".")[0]
        assert top not in ALONE or {other.partition(".")[0] for other in imported} <= {top}, folder


def test_at_most_ten_folders_at_the_top_with_one_way_between_them() -> None:
    """`TopologicalSorter` raises `CycleError`, with the cycle, where there is one."""
    found: dict[str, set[str]] = {}
    for folder, imported in folder_imports().items():
        above = found.setdefault(folder.partition(".")[0], set())
        above |= {other.partition(".")[0] for other in imported} - {folder.partition(".")[0]}
    assert len([folder for folder in found if not folder.startswith("(") and folder not in ALONE]) <= 10
    list(TopologicalSorter(found).static_order())


def test_a_class_name_stands_once() -> None:
    found = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in found.items() if count > 1] == []


def test_no_file_is_long() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert [name for name, count in lines.items() if count > 600] == []


def documented() -> list[str]:
    """Return the folders of the list in docs/architecture.md, in its order."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    section = page.partition("## Folders")[2].partition("\n## ")[0]
    return [name.strip("/").replace("/", ".") for name in re.findall(r"^\d+\. `([\w/]+/)`:? .+", section, re.MULTILINE)]


def test_the_architecture_lists_every_folder() -> None:
    folders = {folder for folder in map(folder_of, MODULES) if not folder.startswith("(")}
    assert sorted(documented()) == sorted(folders)


def test_a_folder_imports_only_those_above_it_in_the_architecture() -> None:
    order = documented()
    for folder, imported in folder_imports().items():
        for other in imported:
            if not folder.startswith("(") and not other.startswith("("):
                assert order.index(other) < order.index(folder), f"{folder} imports {other}"


def test_each_folder_says_what_it_imports() -> None:
    """Its docstring has what is in it, which folders it may import, and where its neighbour's work begins."""
    for folder, imported in folder_imports().items():
        if folder.startswith("(") or not imported:
            continue
        said = " ".join((ast.get_docstring(ast.parse(MODULES[folder].read_text())) or "").split())
        assert len(re.findall(r"[.:;](?: |$)", said)) >= 3, f"{folder}: {said}"
        may = re.search(r"(?:It|They|This package)(?: may)? imports? ([^.]*(?:\.\w[^.]*)*)\.", said)
        assert may, f"{folder} does not say what it imports: {said}"
        if "all of atune but" in may[1]:
            continue
        named = {name.partition(".")[0] for name in re.findall(r"`([\w.]+)`", may[1].replace("/", "."))}
        needed = {other.partition(".")[0] for other in imported if not other.startswith("(")} - {
            folder.partition(".")[0]
        }
        assert needed <= named, f"{folder} imports {sorted(needed - named)}: {said}"


def test_only_stages_import_what_is_heavy_and_they_inside_their_functions() -> None:
    """The parent may import a stage's module. What atune takes from tilelang stands in stages.tilelang."""
    for name, path in MODULES.items():
        for imported, at_the_top in imports(path):
            package = imported.partition(".")[0]
            may_be = name.partition(".")[0] in MAY_BE_HEAVY and not at_the_top
            assert package not in HEAVY or may_be, f"{name} imports {imported}"
            assert package not in ("tilelang", "tvm"), f"{name} imports {imported}"
