"""Send a workload to workers, either by file and name, or as pickled functions together with their source text.

The source text is needed because tilelang reads the source of every kernel, even if the kernel is in a notebook.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import io
import linecache
import os
import shlex
import sys
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec

from atune.errors import NoSuchWorkload, SpaceError, WorkloadError, message_of, name_and_message, type_of
from atune.model.folders import sys_path, working_folder
from atune.model.options import meant
from atune.workload.fingerprint import ALONE, fingerprint, function_of, is_autotuned, parts_of, sent_from, show
from atune.workload.packing import Packed, pack, refusal, unpack
from atune.workload.source_locations import located
from atune.workload.torch_state import take_state, torch_state
from atune.workload.workload import Workload, tuned_by_calls


class FileRef(msgspec.Struct, frozen=True, tag="file"):
    """A reference to a workload by its file and its name. Loading it runs the file."""

    path: str
    name: str
    """The workload's name. An empty name means the only workload in the file, or the workload called WORKLOAD."""
    typed: str = ""
    """The command and the file as typed by the user, for messages."""
    arguments: dict[str, Any] = {}
    """Arguments of the problem that replace the arguments in the file; see `Workload.at`."""
    torch: dict[str, Any] = {}
    """The `torch_state` of the program, or of a run that is continued."""

    @property
    def origin(self) -> str:
        return f"{self.path}:{self.name}" if self.name else self.path

    def at(self, arguments: Mapping[str, Any]) -> FileRef:
        return msgspec.structs.replace(self, arguments=dict(arguments))


class PickleRef(msgspec.Struct, frozen=True, tag="pickle"):
    """A workload by value, which a program sends only to its own workers, and never writes into a journal."""

    packed: Packed
    sources: dict[str, str]
    """Texts of files whose functions or classes are sent by value. The keys are the file names in code objects."""
    sys_path: tuple[str, ...]
    argv: tuple[bytes, ...]
    """The program's `sys.argv`, which modules of the workload may read. A word that is no text has surrogates."""
    torch: dict[str, Any] = {}
    script: str = ""
    """The program's own file. Functions and classes that are sent by value belong to this file."""
    loaded_as: str = ""
    """The program's fingerprint of the workload, if a worker must compute an equal fingerprint; otherwise empty."""


WorkloadRef = FileRef | PickleRef


def parse_file_ref(text: str, command: str = "") -> FileRef:
    """Parse ``FILE.py:NAME`` or ``package.module:NAME``. Without ``:NAME``, the file must have only one workload.

    Raises `WorkloadError` if the file does not exist. `command`: the user's command, for messages about the name.
    """
    path, colon, name = text.rpartition(":")
    if not colon or text.endswith(".py"):
        path, colon, name = text, "", ""
    if not os.path.isfile(file := path) and not (file := _file_of_module(path)):
        why = "it is a folder" if os.path.isdir(path) else f"there is no file {path!r}"
        raise WorkloadError(f"{text}: {why}; give FILE.py, or FILE.py:NAME or package.module:NAME")
    if not colon:
        return FileRef(os.path.abspath(file), "", f"{command} {shlex.quote(path)}".lstrip(), torch=torch_state())
    if not name.isidentifier():
        raise WorkloadError(f"{text}: {name!r} is not a Python name; give FILE.py:NAME")
    return FileRef(os.path.abspath(file), name, torch=torch_state())


def _file_of_module(name: str) -> str:
    """Return the path of a module's file in the working folder or in `sys.path`; empty if there is no such file."""
    for folder in (working_folder(), *sys.path) if name.replace(".", "").isidentifier() else ():
        module = Path(folder, *name.split("."))
        if files := [file for file in (module / "__init__.py", module.with_suffix(".py")) if file.is_file()]:
            return str(files[0])
    return ""


def edited_since(origin: str, when: float) -> str:
    """Return the file in `origin`, which is ``FILE.py:NAME``, if the file was edited after `when`; otherwise empty."""
    file = origin.rpartition(":")[0]
    return file if os.path.isfile(file) and os.path.getmtime(file) > when else ""


_RELATIVE = (
    "; FILE.py:NAME runs the file alone, because its folder has no __init__.py: add one to each folder of the package, "
    "or import by full names (from package.module import ...), with the package's parent folder on PYTHONPATH. Or "
    "import the workload and pass it: atune.run(WORKLOAD)"
)


def _hint(path: str, error: BaseException) -> str:
    """Return advice about an import in the file `path` that failed with `error`; empty if there is no advice."""
    if "relative import" in message_of(error):
        return _RELATIVE
    top = str(getattr(error, "name", None)).partition(".")[0]
    above = next((p for p in Path(path).parents if (p / top).is_dir() or (p / f"{top}.py").is_file()), None)
    missing = isinstance(error, ModuleNotFoundError) and above is not None and top not in sys.modules
    return f"; it is in {above}: set PYTHONPATH={shlex.quote(str(above))}" if missing else ""


_one_at_a_time = threading.Lock()
"""A lock for cloudpickle's list of modules that are pickled by value. The list belongs to the whole process."""


@contextmanager
def _by_value(functions: Iterable[Any]) -> Generator[None, None, None]:
    """Inside the block, make cloudpickle send the modules of `functions` by value, unless workers can import them."""
    import cloudpickle

    named = (getattr(function, "__module__", None) or "" for function in functions)
    modules = {module for name in named if (module := sys.modules.get(name)) and not _importable(module)}
    with _one_at_a_time:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def ship(workload: Workload) -> PickleRef:
    """Pack `workload` for the workers. If pickling fails, raises `WorkloadError`, which names the object at fault.

    Large tensors, arrays and byte strings are not copied, so workers get the content that these have when sent.
    """
    parts, shipped = [part for _, part in parts_of(workload)], copy.copy(workload)
    shipped.amounts, shipped._first = {}, None  # workers need only the results of these functions
    vars(shipped).pop("_points", None)
    with _by_value(map(function_of, parts)):
        try:
            packed = pack(shipped)
        except Exception as error:
            why = refusal([*parts_of(workload), *vars(shipped).items()], error)
            raise WorkloadError(f"Workload {workload.name}: {why}") from error
    codes = (getattr(function_of(part), "__code__", None) for part in parts if not _comes_by_name(part))
    sent_files = {code.co_filename for code in codes if code is not None}
    # Copied in one step, because other threads add entries.
    names = sent_files | {n for n in linecache.cache.copy() if not os.path.exists(n)}
    sources = {name: text for name in names if (text := "".join(linecache.getlines(name)))}
    known = fingerprint(workload) if all(map(_comes_by_name, parts)) else ""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    argv = tuple(str(word).encode("utf-8", "surrogatepass") for word in getattr(sys, "argv", ()))
    return PickleRef(packed, sources, tuple(sys_path()), argv, torch_state(), script, known)


def load(ref: WorkloadRef) -> Workload:
    """Return the workload of `ref`, after running its file or unpickling it. Raises `WorkloadError`."""
    if isinstance(ref, PickleRef):
        for entry in ref.sys_path:
            if entry not in sys.path:
                sys.path.append(entry)
        show(ref.sources)
        sent_from(ref.script)
        sys.argv = [word.decode("utf-8", "surrogatepass") for word in ref.argv]
        with _loading("the workload cannot be loaded in a worker"):
            workload = unpack(ref.packed)
        take_state(ref.torch)
    else:
        take_state(ref.torch)  # before the file runs, which may change the settings
        module = run_file((ref := chosen(ref)).path)
        if not hasattr(module, ref.name):
            there = _workloads_of(module)
            hint = f"it has {', '.join(there)}{meant(ref.name, there)}" if there else "it has no workloads"
            raise NoSuchWorkload(f"{ref.origin}: the file has no {ref.name!r}; {hint}")
        workload = getattr(module, ref.name)
        if is_autotuned(workload):
            try:
                workload = workload.workload_for(ref.arguments)
            except TypeError as error:
                raise NoSuchWorkload(f"{ref.origin}: {error}; pass it with --arg NAME=VALUE") from error
        elif not isinstance(workload, Workload):
            why = tuned_by_calls(workload) or f"is {type_of(workload)} and must be an atune.Workload"
            raise NoSuchWorkload(f"{ref.origin} {why}")
        else:
            workload = workload.at(ref.arguments)
    assert isinstance(workload, Workload)
    return workload


def chosen(ref: FileRef) -> FileRef:
    """Return `ref` with a name. If `ref` has no name, run its file, and take its only workload, or else WORKLOAD.

    If the file has no workload, take its only decorated kernel. Raises `WorkloadError` if the file has several
    workloads or none. The message then lists the possible commands.
    """
    if ref.name:
        return ref
    there = _workloads_of(run_file(ref.path))
    if not there:
        what = f"{ref.path} has no atune.Workload at its top level"
        raise NoSuchWorkload(f"{what}: give a workload a name there, such as WORKLOAD = atune.Workload(…)")
    if len(there) > 1 and PREFERRED not in there:
        ways = "".join(f"\n  {ref.typed}:{name}" for name in there)
        raise NoSuchWorkload(f"{ref.path} has {len(there)} workloads; choose one:{ways}")
    return msgspec.structs.replace(ref, name=PREFERRED if PREFERRED in there else there[0], typed="")


PREFERRED = "WORKLOAD"
"""Name of the workload that is used if a file has several workloads and the user gives no name."""


def _workloads_of(module: ModuleType) -> list[str]:
    """Return the names of a module's workloads, or else of its decorated kernels, in order. Each object counts once."""
    names = list(reversed(vars(module).items()))
    by_id = {id(value): name for name, value in names if isinstance(value, Workload)}
    by_id = by_id or {id(value): name for name, value in names if is_autotuned(value)}
    return list(reversed(by_id.values()))


def _comes_by_name(part: Any) -> bool:
    """Tell whether workers import `part` by its name, so that it is not sent by value."""
    function = function_of(part)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not isinstance(function, FunctionType) or not _importable(module):
        return False
    with suppress(AttributeError):  # whether the module has the function itself, not a decorator's replacement
        if attrgetter(function.__qualname__)(module) is function:
            return True
    return getattr(module, function.__name__, None) is part


def _importable(module: ModuleType) -> bool:
    """Tell whether workers can import the module by name. They cannot import modules that were loaded from a path."""
    if module.__name__ == "__main__":
        return False
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    try:  # not importlib.util.find_spec, which trusts loaded modules
        spec = next((s for f in sys.meta_path if (s := f.find_spec(top.__name__, None)) is not None), None)
    except (ImportError, ValueError):
        return False
    file = getattr(top, "__file__", None)
    if spec is None or file is None or spec.origin is None:
        return spec is not None
    return bool(os.path.realpath(file) == os.path.realpath(spec.origin))


class _Kept(io.StringIO):
    """A stream that passes stderr on while a file is loaded, and keeps a copy."""

    def __init__(self) -> None:
        super().__init__()
        self._stderr, self.fileno = sys.stderr, sys.stderr.fileno  # type: ignore[method-assign]

    def write(self, text: str) -> int:
        self._stderr.write(text)
        return super().write(text)


@contextmanager
def _loading(failed: str, path: str = "") -> Generator[None, None, None]:
    """Raise `WorkloadError` with the message `failed`, the error and its place, if the user's code cannot be loaded.

    `path`: the file that the block runs, or empty.
    """
    try:
        with redirect_stderr(kept := _Kept()):
            yield
    except BaseException as error:
        if isinstance(error, (SpaceError, WorkloadError)):
            raise type(error)(located(str(error), error)) from error
        wrote = " ".join(kept.getvalue().split()[-60:]) if isinstance(error, SystemExit) else ""
        hint = f"; it wrote: {wrote}" if wrote else _hint(path, error)
        kind = NoSuchWorkload if path else WorkloadError
        raise kind(located(f"{failed}: {name_and_message(error)}{hint}", error)) from error


def run_file(path: str) -> ModuleType:
    """Run a file as a module of its package, or as a module of its own. Raises `WorkloadError`."""
    name = f"{ALONE}{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    folder = Path(path).parent
    top, package = folder, list[str]()
    while (top / "__init__.py").is_file() and top.name.isidentifier():
        package.insert(0, top.name)
        top = top.parent
    if str(top) not in sys.path:
        sys.path.insert(0, str(top))
    if str(folder) not in sys.path:  # a script can import from its folder
        sys.path.append(str(folder))
    argv, sys.argv = sys.argv, [path]  # a script has this argv
    try:
        with _loading(f"{path} cannot be loaded", path):
            return _run_member(path, ".".join(package), name)
    finally:
        sys.argv = argv


def _run_member(path: str, package: str, alone: str) -> ModuleType:
    """Run a file as a module of `package` under its full name. Without a package, the module's name is `alone`."""
    name, stem = alone, Path(path).stem
    places = getattr(importlib.import_module(package), "__path__", ()) if package else ()
    if os.path.realpath(os.path.dirname(path)) in map(os.path.realpath, places):  # it is no other package of that name
        name = package if stem == "__init__" else f"{package}.{stem if stem.isidentifier() else alone}"
        if name in sys.modules:
            return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NoSuchWorkload(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for pickle and inspect
    try:
        # Read the text once, so that inspect shows the text that runs, and no compiled file of an older text is used.
        text = Path(path).read_bytes()
        code = compile(text, path, "exec", dont_inherit=True)
        show({path: importlib.util.decode_source(text)})
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
