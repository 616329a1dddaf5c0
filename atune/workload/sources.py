"""The Python files that a workload is loaded from: read once, and the same text for every worker of a run.

A run's workers load the workload at different times, and its files may be edited meanwhile. The first worker reads them
from the disk and reports what it read; the later ones, and inspect in all of them, get that text.

Covered are the user's own modules. Those in the folders of installed packages are left to Python.
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
"""Text that travels to each worker at most; what is mentioned first goes first."""


class Module(msgspec.Struct, frozen=True):
    """One module's file. `package`: whether it is an ``__init__.py``."""

    path: str
    package: bool
    text: bytes


class _Keeper(SourceFileLoader):
    """Loads a module from text, never from compiled files: those are told from older ones by whole seconds alone."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        return self._text if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(f"{path} is loaded from text")


class _Finder:
    """Finds the user's own modules: the kept ones as they are kept, others on the disk, which are kept from then on."""

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
    """Have this process, a worker, load `kept` as they are, and keep what else of the user's it imports."""
    _finder.kept.update(kept)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def pinned() -> dict[str, Module]:
    """Return the modules that this process loads as they are kept, in the order in which they were first read."""
    room, found = MOST_BYTES, {}
    for name, module in _finder.kept.items():
        if len(module.text) <= room:
            found[name] = module
            room -= len(module.text)
    return found


def spec_of(name: str, path: str) -> ModuleSpec | None:
    """Return how to load the module `name` from the file `path`: in a worker, as it is kept."""
    if _finder not in sys.meta_path or not path.endswith(".py"):
        return importlib.util.spec_from_file_location(name, path)
    return _spec(name, _finder.kept.get(name) or _finder.keep(name, path, False))


def show(texts: Mapping[str, str]) -> None:
    """Have inspect, by which tilelang reads kernels, and tracebacks show `texts` as the files that they name."""
    for name, text in texts.items():
        # mtime None marks the entry as not backed by a file, so that checkcache() keeps it.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def changed(kept: Mapping[str, Module]) -> list[str]:
    """Return the files, sorted, whose text is not what was kept; those that are gone, too."""
    return sorted({module.path for module in kept.values() if _text(module.path) != module.text})


def written_since(when: float, kept: Mapping[str, Module]) -> list[str]:
    """Return the files beside the kept ones that were written after `when`, but for journals."""
    found = []
    for folder in {os.path.dirname(module.path) for module in kept.values()}:
        with suppress(OSError), os.scandir(folder) as entries:
            found += [e.path for e in entries if e.is_file() and e.stat().st_mtime > when]
    return sorted(path for path in found if not path.endswith(".jsonl"))


def mentioned(names: Iterable[str], texts: Iterable[str] = ()) -> dict[str, Module]:
    """Return the user's own modules among `names`, in `texts`, and in those modules in turn, as they are on the disk.

    Of the modules that this process has loaded; one is mentioned where its name's last part occurs as a word. Too
    many do no harm: a module that nobody imports is not loaded.
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
    """Return the file of a module that is not imported by name, such as a script, under a name that no import has."""
    path = os.path.abspath(getattr(module, "__file__", None) or "")
    text = _text(path)
    return {} if text is None else {path: Module(path, False, text)}


def _spec(name: str, module: Module) -> ModuleSpec | None:
    with suppress(SyntaxError, UnicodeError):  # loading it will say so
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
    """Tell whether a module is the user's: Python, importable, and in no folder of installed packages."""
    if name == "__main__" or name.partition(".")[0] in LIBRARIES or not path or not path.endswith(".py"):
        return False
    return os.path.isabs(path) and not path.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    named = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    named += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.join(place, "") for folder in named for place in (folder, os.path.realpath(folder))})
