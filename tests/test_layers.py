"""The layers of docs/architecture.md: who may import whom, read off the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import atune

PACKAGE = Path(atune.__file__).parent
LAYERS = {
    "leaves": ["errors", "space", "carver", "device", "settings", "cache", "cores", "folders", "version"],
    "records": [
        "candidate",
        "artifact",
        "measurement",
        "callables",
        "sealed",
        "fingerprint",
        "shipping",
        "workload",
        "protocol",
        "events",
        "state",
        "result",
    ],
    "side": [
        "reader",
        "journal",
        "playback",
        "log",
        "progress",
        "recorder",
        "store",
        "merging",
        "exporting",
        "report",
        "result_entry",
        "known",
        "tuning_lock",
        "result_cache",
    ],
    "stages": ["stages", *(f"stages.{p.stem}" for p in (PACKAGE / "stages").glob("*.py") if p.stem != "__init__")],
    "drive": [
        "strategy",
        "screen",
        "device_compiler",
        "compile_service",
        "scheduler",
        "resumption",
        "backend",
        "server_process",
        "forkserver",
        "background",
        "worker",
        "pool",
        "device_lock",
        "local_device",
        "local_compile",
        "local",
        "plausible",
        "standing",
        "running",
        "finalists",
        "compiling",
        "measuring",
        "finals",
        "engine",
    ],
    "edge": [
        "tuner",
        "cached",
        "arguments",
        "presets",
        "turns",
        "shipped",
        "call",
        "autotuned",
        "decorator",
        "sweep",
        "continuation",
        "cli",
        "cli_tune",
        "cli_journal",
        "cli_cache",
        "interrupts",
        "doctor",
        "testing",
        *(f"testing.{p.stem}" for p in (PACKAGE / "testing").glob("*.py") if p.stem != "__init__"),
        "__main__",
        "",
    ],
    "compat": [
        "compat",
        "compat.tilelang",
        *(f"compat.tilelang.{p.stem}" for p in (PACKAGE / "compat" / "tilelang").glob("[a-z]*.py")),
    ],
}
MAY_IMPORT = {
    "leaves": {"leaves"},
    "records": {"leaves", "records"},
    "side": {"leaves", "records", "side"},
    "stages": {"leaves", "records", "stages"},
    "drive": {"leaves", "records", "side", "drive"},
    "edge": {"leaves", "records", "side", "drive", "edge"},
    "compat": {"leaves", "records", "side", "stages", "drive", "edge", "compat"},
}
LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules}
HEAVY = {"tilelang", "torch", "tvm", "pynvml"}


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix("__init__").removesuffix(".")] = path
    return found


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
    while inner and inner not in LAYER_OF:
        inner = inner.rpartition(".")[0]
    return inner


def test_every_module_has_a_layer() -> None:
    assert set(modules()) == set(LAYER_OF)


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_one_way(name: str) -> None:
    layer = LAYER_OF[name]
    for imported, _ in imports(modules()[name]):
        inner = ours(imported)
        if inner is not None:
            assert LAYER_OF[inner] in MAY_IMPORT[layer], f"{name} ({layer}) imports {inner} ({LAYER_OF[inner]})"


@pytest.mark.parametrize("name", sorted(modules()))
def test_only_stages_import_what_is_heavy(name: str) -> None:
    for imported, _ in imports(modules()[name]):
        if imported.partition(".")[0] in HEAVY and LAYER_OF[name] not in ("stages", "compat"):
            # doctor asks NVML, inside a function; it makes no CUDA context
            assert (name, imported.partition(".")[0]) == ("doctor", "pynvml"), f"{name} imports {imported}"


@pytest.mark.parametrize("name", sorted(n for n in modules() if n.startswith(("stages", "compat"))))
def test_stages_are_imported_without_tilelang(name: str) -> None:
    """The parent may import a stage's module; what is heavy is imported inside its functions."""
    for imported, at_the_top in imports(modules()[name]):
        assert not (at_the_top and imported.partition(".")[0] in HEAVY), f"{name} imports {imported} at its top"
