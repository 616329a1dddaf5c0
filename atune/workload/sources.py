"""Python files of a workload: read once, so that every worker of a run gets the same text.

Workers load the workload at different times, and the user may edit its files during the run. The first worker reads
the files from disk and reports their text. Later workers load that text, and so does `inspect` in all workers.

This covers the user's own modules. Python itself loads the modules of installed packages.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

import msgspec

from atune.workload.fingerprint import LIBRARIES

MOST_BYTES = 4 << 20
"""Most text sent to each worker. Modules that are mentioned first have precedence."""


class Module(msgspec.Struct, frozen=True):
    """One module's file. `package`: whether it is an ``__init__.py``."""

    path: str
    package: bool
    text: bytes


class _Keeper(SourceFileLoader):
    """Loads a module from text, never from compiled files, whose time stamps only have whole seconds."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        return self._text if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(f"{path} is loaded from text")


class _Finder:
    """Finds the user's own modules. Returns a kept module from its text; reads and keeps others from disk."""

    def __init__(self) -> None:
        self.kept: dict[str, Module] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (known := self.kept.get(name)) is not None:
            return _spec(name, known)
        others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
        spec = next((found for find in others if find and (found := find(name, path, target)) is not None), None)
        if spec is None or type(spec.loader) is not SourceFileLoader or not _is_own(name, spec.origin):
            return spec
        return _spec(name, self.keep(name, spec.origin or "", spec.submodule_search_locations is not None))

    def keep(self, name: str, path: str, package: bool) -> Module:
        self.kept[name] = module = Module(path, package, Path(path).read_bytes())
        return module


_finder = _Finder()


def pin(kept: Mapping[str, Module]) -> None:
    """Make this worker process load `kept` from their texts, and keep the user's other modules that it imports."""
    _finder.kept.update(kept)
    _library_folders()  # sysconfig imports a module: with Python 3.13, asking it from the finder fails
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def pinned() -> dict[str, Module]:
    """Return the modules that this process keeps, in the order of their first reading."""
    room, found = MOST_BYTES, {}
    for name, module in _finder.kept.items():
        if len(module.text) <= room:
            found[name] = module
            room -= len(module.text)
    return found


def spec_of(name: str, path: str) -> ModuleSpec | None:
    """Return the spec to load the module `name` from the file `path`. A worker loads a kept module's text."""
    if _finder not in sys.meta_path or not path.endswith(".py"):
        return importlib.util.spec_from_file_location(name, path)
    return _spec(name, _finder.kept.get(name) or _finder.keep(name, path, False))


def show(texts: Mapping[str, str]) -> None:
    """Make inspect and tracebacks use `texts` as contents of the named files. tilelang reads kernels by inspect."""
    for name, text in texts.items():
        # mtime None marks an entry without a file, which checkcache() keeps.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def changed(kept: Mapping[str, Module]) -> list[str]:
    """Return the files, sorted, whose text differs from the kept text or that are missing."""
    return sorted({module.path for module in kept.values() if _text(module.path) != module.text})


def written_since(when: float, kept: Mapping[str, Module]) -> list[str]:
    """Return other files in the folders of the kept ones that were written after `when`, except journals."""
    found = []
    for folder in {os.path.dirname(module.path) for module in kept.values()}:
        with suppress(OSError), os.scandir(folder) as entries:
            found += [e.path for e in entries if e.is_file() and e.stat().st_mtime > when]
    return sorted(path for path in found if not path.endswith(".jsonl"))


def mentioned(names: Iterable[str], texts: Iterable[str] = ()) -> dict[str, Module]:
    """Return the user's own modules among `names`, in `texts`, and in those modules in turn, as now on disk.

    Only modules that this process has loaded count. A text mentions a module if the last part of its name occurs as
    a word. Extra modules do no harm, because a worker loads only those that it imports.
    """
    loaded = sys.modules.copy()
    own = {name: module for name, module in loaded.items() if _is_own(name, getattr(module, "__file__", None))}
    found: dict[str, Module] = {}
    waiting = [name for name in names if name in own]
    words = {word for text in texts for word in re.findall(rb"\w+", text.encode(errors="replace"))}
    room = MOST_BYTES
    while waiting or words:
        waiting += [name for name in own if name not in found and name.rpartition(".")[2].encode() in words]
        words = set()
        for name in (part for one in waiting for part in _with_parents(one)):
            if name in found or name not in own:
                continue
            path = str(own[name].__file__)
            text = _text(path)
            if text is None or len(text) > room:
                continue
            room -= len(text)
            found[name] = Module(path, hasattr(own[name], "__path__"), text)
            words |= set(re.findall(rb"\w+", text))
        waiting = []
    return found


def file_of(module: ModuleType) -> dict[str, Module]:
    """Return the file of a module that is not imported by name, such as a script, under a name of no import."""
    path = os.path.abspath(getattr(module, "__file__", None) or "")
    text = _text(path)
    return {} if text is None else {path: Module(path, False, text)}


def _spec(name: str, module: Module) -> ModuleSpec | None:
    with suppress(SyntaxError, UnicodeError):  # loading the file will report the error
        show({module.path: importlib.util.decode_source(module.text)})
    places = [os.path.dirname(module.path)] if module.package else None
    loader = _Keeper(name, module.path, module.text)
    return importlib.util.spec_from_file_location(name, module.path, loader=loader, submodule_search_locations=places)


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _text(path: str) -> bytes | None:
    with suppress(OSError):
        return Path(path).read_bytes()
    return None


def _is_own(name: str, path: str | None) -> bool:
    """Tell whether a module is the user's own: Python, importable, and outside the folders of installed packages."""
    if name == "__main__" or name.partition(".")[0] in LIBRARIES or not path or not path.endswith(".py"):
        return False
    return os.path.isabs(path) and not path.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    named = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    named += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.join(place, "") for folder in named for place in (folder, os.path.realpath(folder))})
