"""What to tune: a kernel factory, its space, the problem, inputs, and the reference to check against.

A workload reaches the workers as a `WorkloadRef`: the file and name it came from, or its pickled functions together
with their source text (tilelang reads the source of a kernel, also of one typed into a notebook).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec

from atune.candidate import COMPILE_FLAGS, PASS_CONFIGS, RESERVED, Candidate, Config, config_key, normalise
from atune.errors import SpaceError, WorkloadError
from atune.space import Space

SUPPLIES = ("auto", "integer", "uniform", "normal", "randn", "zero", "one")
"""tilelang's `TensorSupplyType`, by name."""

Inputs = Callable[..., Sequence[Any]] | Sequence[Any] | None


class Workload:
    """A kernel to tune.

    Parameters
    ----------
    kernel
        A function of the problem's arguments and the configuration that returns a TileLang PrimFunc, plain or under
        `@tilelang.jit`.
    space
        `Space`, or what `Space(...)` takes as its first argument.
    arguments
        The problem: values of the kernel's other parameters, such as ``{"M": 1024, "N": 1024}``.
    inputs
        Tensors for the kernel's input parameters, or a function that returns them, called with those of the problem's
        arguments that it names (torch is seeded before). Without it they are drawn by the parameters' shapes and
        dtypes.
    reference
        A function of the inputs that returns the expected output, or a tuple of them. Without it nothing is checked.
    out_idx
        Positions of the output parameters; by default `@tilelang.jit`'s `out_idx`, else the last parameter.
    check
        A function that judges the outputs and returns false, or raises AssertionError, where they are wrong. With a
        reference it gets ``(outputs, reference_outputs)``, as tilelang's `manual_check_prog` does; without one
        ``(inputs, outputs)``. All are lists of tensors.
    supply
        How inputs are drawn: the name of one of tilelang's supply types, such as ``"integer"`` or ``"uniform"``.
    restore, zero
        Positions of parameters to restore, or to set to zero, before each call. Inputs that a kernel writes into are
        found out and restored without being named.
    flops, bytes
        Operations, and bytes moved to and from memory, of one call at least. A figure faster than the device's peak
        allows is then measured once more in a fresh process.
    rtol, atol
        Tolerances of the check, as in `torch.testing.assert_close`; by default by output dtype.
    max_mismatched_ratio
        Share of elements that may lie outside the tolerances.
    default
        The configuration to compare the winner with; by default the kernel's own parameter defaults.
    source
        The kernel module's source text, for kernels made by `exec` whose source Python cannot find.

    Raises `WorkloadError` or `SpaceError` for what cannot work, such as an axis that the kernel does not take.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        space: Space | Any,
        *,
        arguments: Mapping[str, Any] | None = None,
        inputs: Inputs = None,
        reference: Callable[..., Any] | None = None,
        out_idx: int | Sequence[int] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        max_mismatched_ratio: float = 0.0,
        check: Callable[..., Any] | None = None,
        supply: Any = None,
        restore: Sequence[int] = (),
        zero: Sequence[int] = (),
        flops: float | None = None,
        bytes: float | None = None,
        default: Mapping[str, Any] | None = None,
        pass_configs: Mapping[str, Any] | None = None,
        name: str | None = None,
        source: str | None = None,
    ) -> None:
        if not callable(kernel):
            raise WorkloadError(f"Workload: kernel must be a function that returns a PrimFunc, got {kernel!r}")
        if reference is not None and not callable(reference):
            raise WorkloadError(f"Workload: reference must be a function of the inputs, got {reference!r}")
        if check is not None and not callable(check):
            raise WorkloadError(f"Workload: check must be a function of the outputs, got {check!r}")
        self.supply = None if supply is None else str(getattr(supply, "name", supply)).lower()
        if self.supply not in (None, *SUPPLIES):
            raise WorkloadError(f"Workload: supply {supply!r} is unknown: give {', '.join(SUPPLIES)}")
        for label, positions in (("restore", restore), ("zero", zero)):
            if isinstance(positions, str) or not all(type(i) is int for i in positions):
                raise WorkloadError(f"Workload: {label} must be positions of parameters, got {positions!r}")
        work = (("flops", flops), ("bytes", bytes))
        for label, value in (("rtol", rtol), ("atol", atol), ("max_mismatched_ratio", max_mismatched_ratio), *work):
            if value is not None and not value >= 0:
                raise WorkloadError(f"Workload: {label} must be zero or more, got {value!r}")
        self.kernel = kernel
        self.space = space if isinstance(space, Space) else Space(space)
        self.name: str = name or str(getattr(_function(kernel), "__name__", "kernel"))
        self.arguments: dict[str, Any] = {
            k: normalise(v, f"Workload {self.name}: argument {k!r}") for k, v in (arguments or {}).items()
        }
        self.inputs = inputs
        self.reference = reference
        self.out_idx = (out_idx,) if isinstance(out_idx, int) else (tuple(out_idx) if out_idx is not None else None)
        if self.out_idx is None:
            jit_outputs = getattr(kernel, "out_idx", None)
            self.out_idx = (jit_outputs,) if isinstance(jit_outputs, int) else tuple(jit_outputs or (-1,))
        self.check, self.restore, self.zero = check, tuple(restore), tuple(zero)
        self.flops, self.bytes = flops, bytes
        self.rtol, self.atol, self.max_mismatched_ratio = rtol, atol, max_mismatched_ratio
        self.default = dict(default) if default is not None else None
        self.pass_configs: dict[str, Any] = {**(getattr(kernel, "pass_configs", None) or {}), **(pass_configs or {})}
        self.source = source

    def candidates(self) -> list[Candidate]:
        """Enumerate the space. Raises `SpaceError` where a configuration does not fit the kernel."""
        parameters = inspect.signature(_function(self.kernel)).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        required = {
            n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        for name in self.arguments:
            if name not in parameters and not takes_any:
                raise WorkloadError(
                    f"Workload {self.name}: the kernel takes no argument {name!r}; it takes {', '.join(parameters)}"
                )
        found: list[Candidate] = []
        seen: dict[str, int] = {}
        for index, raw in enumerate(self.space.configs(self.arguments)):
            where = f"Workload {self.name}, config {index}"
            config = {str(k): normalise(v, f"{where}: {k!r}") for k, v in raw.items()}
            names = config.keys() - RESERVED
            if unknown := sorted(n for n in names if n not in parameters and not takes_any):
                raise SpaceError(
                    f"{where}: the kernel takes no argument {unknown[0]!r}; it takes "
                    f"{', '.join(n for n in parameters if n not in self.arguments)}"
                )
            if both := sorted(names & self.arguments.keys()):
                raise SpaceError(f"{where}: {both[0]!r} is an axis and a problem argument; give it in one place")
            if missing := sorted(required - names - self.arguments.keys()):
                raise SpaceError(
                    f"{where}: {config} lacks {missing[0]!r}, which the kernel needs; add it there or to arguments"
                )
            if not isinstance(config.get(PASS_CONFIGS, {}), dict):
                raise SpaceError(f"{where}: {PASS_CONFIGS} must be a dict, got {config[PASS_CONFIGS]!r}")
            flags = config.get(COMPILE_FLAGS)
            if flags is not None and not (isinstance(flags, tuple) and all(isinstance(f, str) for f in flags)):
                raise SpaceError(
                    f"{where}: {COMPILE_FLAGS} must be a list of flags, such as ['-O2', '-ffast-math'], or None for "
                    f"those of CompileSettings; got {flags!r}"
                )
            key = config_key(config)
            if key in seen:
                raise SpaceError(f"{where}: {config} occurs twice, first as config {seen[key]}")
            seen[key] = index
            found.append(Candidate(index, key, config))
        return found

    def default_config(self, candidates: Sequence[Candidate]) -> int | None:
        """Return the index of the default configuration, or None where the space does not hold it."""
        parameters = inspect.signature(_function(self.kernel)).parameters
        for candidate in candidates:
            config = self.default
            if config is None:
                config = {n: parameters[n].default for n in candidate.config if n in parameters}
                config |= {n: v for n, v in ((PASS_CONFIGS, {}), (COMPILE_FLAGS, None)) if n in candidate.config}
            try:
                if config_key({k: normalise(v, k) for k, v in config.items()}) == candidate.key:
                    return candidate.index
            except SpaceError:
                return None
        if self.default is not None:
            raise WorkloadError(f"Workload {self.name}: the default {self.default} is not in the space")
        return None


class FileRef(msgspec.Struct, frozen=True, tag="file"):
    """A workload by file and name; loading it runs the file."""

    path: str
    name: str

    @property
    def origin(self) -> str:
        return f"{self.path}:{self.name}"


class PickleRef(msgspec.Struct, frozen=True, tag="pickle"):
    """A workload by value. Only ever between a program and its own workers; never in a journal."""

    blob: bytes
    sources: dict[str, str]
    """Text of files that the workers cannot read, by the name that code objects know them under."""
    sys_path: tuple[str, ...]
    cwd: str
    origin: str = ""


WorkloadRef = FileRef | PickleRef


class WorkloadSpec(msgspec.Struct, frozen=True):
    """All that the engine needs to know about a workload: plain data, no code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    default: int | None
    fingerprint: str
    has_reference: bool
    out_idx: tuple[int, ...]
    flops: float | None = None
    bytes: float | None = None


def parse_file_ref(text: str) -> FileRef:
    """Read ``FILE.py:NAME``; NAME defaults to WORKLOAD. Raises `WorkloadError` when there is no such file."""
    path, colon, name = text.rpartition(":")
    if not colon:
        path, name = text, "WORKLOAD"
    if not os.path.isfile(path):
        raise WorkloadError(
            f"{text}: there is no file {path!r}; give FILE.py:NAME, such as examples/gemm_cpu.py:WORKLOAD"
        )
    if not name.isidentifier():
        raise WorkloadError(f"{text}: {name!r} is no Python name; give FILE.py:NAME")
    return FileRef(os.path.abspath(path), name)


_by_value = threading.Lock()
"""Which modules cloudpickle takes by value is one setting of the whole process."""


def ship(workload: Workload) -> PickleRef:
    """Pack `workload` for the workers. Raises `WorkloadError`, naming the culprit, for what cannot be pickled."""
    import cloudpickle

    functions = _functions(workload)
    if workload.source is not None:
        _prime_linecache({_function(workload.kernel).__code__.co_filename: workload.source})
    by_value = {m for f in functions if (m := sys.modules.get(f.__module__ or "")) and not _importable(m)}
    with _by_value:
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            blob = cloudpickle.dumps((workload, _annotation_globals(functions)))
        except Exception as error:
            culprit = next((f"{n} " for n, f in _parts(workload) if not _pickles(f)), "")
            raise WorkloadError(
                f"Workload {workload.name}: {culprit}cannot be sent to the workers ({error}); functions must not hold "
                "locks, files, CUDA tensors' streams or the like in their closure or defaults"
            ) from error
        finally:
            for module in by_value:
                cloudpickle.unregister_pickle_by_value(module)
    own_files = {f.__code__.co_filename for f in functions if hasattr(f, "__code__")}
    names = own_files | {n for n in linecache.cache if not os.path.exists(n)}
    sources = {name: text for name in names if (text := "".join(linecache.getlines(name)))}
    return PickleRef(blob, sources, tuple(sys.path), os.getcwd())


def load(ref: WorkloadRef) -> Workload:
    """Return the workload that `ref` names, running its file or unpickling it. Raises `WorkloadError`."""
    if isinstance(ref, PickleRef):
        import cloudpickle

        for entry in ref.sys_path:
            if entry not in sys.path:
                sys.path.append(entry)
        _prime_linecache(ref.sources)
        workload, annotations = cloudpickle.loads(ref.blob)
        for function in _functions(workload):
            _place(function, annotations)
    else:
        module = _run_file(ref.path)
        if not hasattr(module, ref.name):
            there = sorted(n for n, v in vars(module).items() if isinstance(v, Workload))
            hint = f"it has {', '.join(there)}" if there else "it has no Workload at all"
            raise WorkloadError(f"{ref.origin}: the file has no {ref.name!r}; {hint}")
        workload = getattr(module, ref.name)
        if not isinstance(workload, Workload):
            raise WorkloadError(f"{ref.origin} is a {type(workload).__name__}, and must be an atune.Workload")
    assert isinstance(workload, Workload)
    return workload


def describe(workload: Workload, origin: str = "") -> WorkloadSpec:
    """Enumerate and fingerprint `workload`. Raises `SpaceError` and `WorkloadError`."""
    candidates = workload.candidates()
    return WorkloadSpec(
        name=workload.name,
        origin=origin,
        arguments=workload.arguments,
        configs=tuple(c.config for c in candidates),
        default=workload.default_config(candidates),
        fingerprint=fingerprint(workload),
        has_reference=workload.reference is not None,
        out_idx=tuple(workload.out_idx or ()),
        flops=workload.flops,
        bytes=workload.bytes,
    )


def fingerprint(workload: Workload) -> str:
    """Return a SHA-256 over the kernel's source and closure, the problem, and how results are checked."""
    digest = hashlib.sha256()
    # Without the constraints: the space is told apart by its candidates, and may grow while the kernel stays.
    for label, function in _parts(workload)[: -len(workload.space.where) or None]:
        digest.update(f"\0{label}\0".encode())
        digest.update(_identity(function))
    checks: list[Any] = [
        workload.out_idx,
        workload.rtol,
        workload.atol,
        workload.max_mismatched_ratio,
        workload.pass_configs,
    ]
    checks += [workload.supply, workload.restore, workload.zero]
    digest.update(msgspec.json.encode([workload.arguments, checks], order="deterministic", enc_hook=repr))
    return digest.hexdigest()


def _parts(workload: Workload) -> list[tuple[str, Any]]:
    parts = [("kernel", workload.kernel), ("inputs", workload.inputs), ("reference", workload.reference)]
    parts.append(("check", workload.check))
    parts += [(f"constraint {i}", c) for i, c in enumerate(workload.space.where)]
    return [(label, part) for label, part in parts if part is not None]


def _function(kernel: Any) -> Any:
    """Return the Python function inside `@tilelang.jit`'s wrapper, or `kernel` itself."""
    inner = getattr(kernel, "func", None)
    return getattr(inner, "orig_func", None) or (inner if inspect.isfunction(inner) else kernel)


def _functions(workload: Workload) -> list[Any]:
    return [f for _, part in _parts(workload) if inspect.isfunction(f := _function(part))]


def _identity(part: Any, depth: int = 0) -> bytes:
    function = _function(part)
    if not inspect.isfunction(function):
        return _data_identity(part, depth)
    try:
        # A lambda's source is the whole statement around it, such as the workload's with its space.
        text = _lambda_text(function.__code__) if function.__name__ == "<lambda>" else inspect.getsource(function)
    except (OSError, TypeError):
        text = _code_text(function.__code__)
    cells = [c.cell_contents for c in function.__closure__ or () if depth < 4 and _filled(c)]
    names = dict.fromkeys(_names(function.__code__)) if depth < 4 else {}
    used = [function.__globals__[n] for n in names if n in function.__globals__]
    inner = [
        _identity(v, depth + 1)
        for v in (*cells, *used, *(function.__defaults__ or ()))
        if not isinstance(v, ModuleType)
    ]
    return b"\0".join([text.encode(), *inner])


def _data_identity(part: Any, depth: int) -> bytes:
    """Tell data apart by value; other objects by their type, for their `repr` may hold an address."""
    if part is None or isinstance(part, (str, bytes, int, float, complex)):
        return repr(part).encode()
    items: list[bytes] = []
    if depth < 8 and isinstance(part, (list, tuple)):
        items = [_identity(v, depth + 1) for v in part]
    elif depth < 8 and isinstance(part, (set, frozenset)):
        items = sorted(_identity(v, depth + 1) for v in part)
    elif depth < 8 and isinstance(part, Mapping):
        items = sorted(_identity(k, depth + 1) + b"=" + _identity(v, depth + 1) for k, v in part.items())
    return b"(" + b",".join([repr(type(part)).encode(), *items]) + b")"


def _lambda_text(code: CodeType) -> str:
    """Return parameters and body of a lambda as they stand in its file."""
    found = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    lines = [line.encode() for line in linecache.getlines(code.co_filename)]
    if not found or not lines:
        raise OSError("no source")
    start = min((p[0] or 0, p[2] or 0) for p in found)
    end = max((p[1] or 0, p[3] or 0) for p in found)
    if end[0] > len(lines):
        raise OSError("no source")
    body = lines[start[0] - 1 : end[0]]
    body[-1] = body[-1][: end[1]]
    body[0] = body[0][start[1] :]
    return f"lambda {code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}: {b''.join(body).decode()}"


def _code_text(code: CodeType) -> str:
    """Tell code apart whose source is nowhere. Its own `repr` holds an address."""
    consts = [_code_text(c) if isinstance(c, CodeType) else _data_identity(c, 0) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, consts))


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that `code` and the functions inside it, such as the PrimFunc's, use."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _pickles(part: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(part)
    except Exception:
        return False
    return True


def _annotation_globals(functions: Sequence[Any]) -> dict[str, Any]:
    """Return the globals that only annotations name.

    Under ``from __future__ import annotations`` these are strings, which pickling by value does not look into.
    """
    found: dict[str, Any] = {}

    def names(code: CodeType) -> Iterator[str]:
        texts = [c for const in code.co_consts for c in (const if isinstance(const, tuple) else (const,))]
        for text in texts:
            if isinstance(text, CodeType):
                yield from names(text)
            elif isinstance(text, str) and len(text) < 1000:
                with suppress(SyntaxError, ValueError):
                    yield from (n.id for n in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(n, ast.Name))

    for function in functions:
        module = sys.modules.get(function.__module__ or "")
        if module is not None and _importable(module):
            continue
        for name in names(function.__code__):
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, Workload) and _pickles(value):
                found[name] = value
    return found


def _place(function: Any, annotations: Mapping[str, Any]) -> None:
    """Give a function that came by value the globals and the module in which its annotations are looked up."""
    for name, value in annotations.items():
        function.__globals__.setdefault(name, value)
    name = function.__module__
    if name and (name == "__main__" or name not in sys.modules):
        module = ModuleType(name)
        module.__dict__.update(function.__globals__)
        sys.modules[name] = module


def _importable(module: ModuleType) -> bool:
    if module.__name__ == "__main__":
        return False
    try:
        return importlib.util.find_spec(module.__name__) is not None
    except (ImportError, ValueError):
        return False


def _prime_linecache(sources: Mapping[str, str]) -> None:
    # mtime None marks the entry as not backed by a file, so that checkcache() keeps it.
    for name, text in sources.items():
        if not os.path.exists(name):
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _run_file(path: str) -> ModuleType:
    name = f"atune_workload_{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and inspect look it up here
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (SpaceError, WorkloadError)):
            raise
        if isinstance(error, Exception):
            raise WorkloadError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        raise
    return module
