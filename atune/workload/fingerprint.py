"""The identity of kernels: their source texts, and fingerprints of a workload's source, closure and globals. Comments,
docstrings and formatting have no effect on a fingerprint.
"""

from __future__ import annotations

import ast
import copyreg
import enum
import functools
import gc
import hashlib
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from atune.model.candidate import LAUNCH_HINTS

if TYPE_CHECKING:
    from atune.workload.workload import Workload

T = TypeVar("T", bound=ast.AST)
PARSE_TRIES = 5
"""How often a parse is tried, as CPython 3.11 may raise `SystemError` while another thread parses (issue 106905)."""
_SILENT = frozenset({"kind", "type_comment", "type_ignores", "str"})
"""Fields of the syntax tree that hold only spelling, such as a string's prefix, a type comment, a template's text."""
_NO_TREE = (SyntaxError, ValueError, RecursionError, MemoryError)
ALONE = "atune_workload_"
"""Beginning of the names of modules that workers make from files that are not in a package."""
BY_NAME_ALONE = frozenset({"atune", "tilelang", "torch", "tvm", "tvm_ffi"})
"""Packages whose functions are identified by name. atune records the packages' versions instead of their sources."""


def fingerprint(workload: Workload, *, problem: bool = True) -> str:
    """Return a SHA-256 of the kernel's source and closure, the problem, and everything that affects the checks.

    Comments, docstrings and formatting have no effect. `problem`: if False, the problem's arguments are left out,
    because the caller has another key for them.
    """
    digest = hashlib.sha256()
    # Constraints do not count, because the space has its own fingerprint, and may grow while the kernel stays the same.
    for label, function in parts_of(workload)[: -len(workload.space.where) or None]:
        digest.update(f"\0{label}\0".encode())
        digest.update(identity(function))
    checks: list[Any] = [
        len(workload.out_idx) if workload.kernels_out_idx and workload.out_idx is not None else workload.out_idx,
        workload.rtol,
        workload.atol,
        workload.max_mismatched_ratio,
        workload.pass_configs,
    ]
    checks += [workload.supply, workload.restore, workload.zero]
    arguments = workload.arguments if problem else None
    digest.update(msgspec.json.encode([arguments, checks], order="deterministic", enc_hook=repr))
    return digest.hexdigest()


def kernel_fingerprint(kernel: Any, *, without_defaults: Collection[str] = ()) -> str:
    """Return a SHA-256 of only the source and closure of a kernel.

    `without_defaults`: parameters whose default values are left out.
    """
    return hashlib.sha256(identity(kernel, without_defaults=without_defaults)).hexdigest()


def identity(part: Any, depth: int = 0, without_defaults: Collection[str] = ()) -> bytes:
    """Return the bytes of a function or of data in a fingerprint, which are the same in a program and its workers."""
    if callable(own := getattr(type(part), "cache_identity", None)):
        return bytes(own(part))
    if is_autotuned(part):
        return identity(part.kernel, depth)  # without the results that it has collected
    function = function_of(part)
    if not inspect.isfunction(function):
        return _data_identity(part, depth)
    if (function.__module__ or "").partition(".")[0] in BY_NAME_ALONE:
        return f"{function.__module__}.{function.__qualname__}".encode()
    code, positional = function.__code__, function.__defaults__ or ()
    try:
        # A lambda's source is the whole statement around it, for example a workload with its space.
        if function.__name__ == "<lambda>":
            parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            text = f"lambda {parameters}: {normalised_expression(lambda_body(code))}"
        else:
            text = normalised(inspect.getsource(function), without_defaults)
    except (OSError, TypeError):
        text = _code_text(code)
    cells = [c.cell_contents for c in function.__closure__ or () if depth < 4 and _filled(c)]
    names = dict.fromkeys((*global_names(code), *annotation_names(function))) if depth < 4 else {}
    used = [function.__globals__[n] for n in names if n in function.__globals__]
    first = code.co_argcount - len(positional)
    defaults = dict(zip(code.co_varnames[first : code.co_argcount], positional, strict=True))
    defaults |= function.__kwdefaults__ or {}
    counting = (value for name, value in defaults.items() if name not in without_defaults)
    values = [*_taken([*cells, *used], names, []), *counting]
    return b"\0".join([text.encode(), *(identity(value, depth + 1) for value in values)])


def _taken(values: Iterable[Any], names: Collection[str], seen: list[ModuleType]) -> Iterator[Any]:
    """Yield `values`. A module of the user is replaced by those of its variables whose names are in `names`."""
    for value in values:
        if not isinstance(value, ModuleType):
            yield value
        elif value not in seen and not _is_library(value.__name__, str(getattr(value, "__path__", value))):
            seen.append(value)
            yield from _taken([vars(value)[name] for name in names if name in vars(value)], names, seen)


def _is_library(module: str, place: str = "") -> bool:
    top = module.partition(".")[0]
    return top in BY_NAME_ALONE or top in sys.stdlib_module_names or "-packages" in place


def _data_identity(part: Any, depth: int) -> bytes:
    """Return bytes that identify data. Values are identified by content, tensors by metadata, functions by source.

    Other objects are identified by type and pickled content, because their `repr` may contain an address.
    """
    if isinstance(part, bytes):
        return f"{len(part)} bytes: {hashlib.sha256(part).hexdigest()}".encode()
    if part is None or isinstance(part, (str, int, float, complex)):
        return repr(part).encode()
    if isinstance(part, type):
        return _class_identity(part, depth)
    if isinstance(part, ModuleType):
        return part.__name__.encode()
    if part is os.environ:
        return b"os.environ"  # its values differ between the workers of one run
    if type(part).__module__.partition(".")[0] == "torch":
        if all(hasattr(part, name) for name in ("dtype", "shape", "stride", "device")):  # a tensor, without its data
            return repr((str(part.dtype), tuple(part.shape), part.stride(), str(part.device))).encode()
        return str(part).encode() if type(part).__name__ in ("dtype", "device", "Size") else repr(type(part)).encode()
    if is_compiled(part):
        return str(part.prim_func).encode()
    if isinstance(own := getattr(type(part), "cache_identity", None), str):
        return own.encode()  # the cache key covers its content
    if isinstance(part, MethodType):
        return identity(part.__func__, depth + 1) + b"@" + identity(part.__self__, depth + 1)
    if isinstance(part, BuiltinFunctionType | MethodDescriptorType):
        return f"{part.__module__ if hasattr(part, '__module__') else ''}.{part.__qualname__}".encode()
    items, kind = list[bytes](), type(part)
    if depth < 8 and isinstance(part, enum.Enum):
        items = [part.name.encode()]
    elif depth < 8 and isinstance(part, (list, tuple)):
        items = [identity(v, depth + 1) for v in part]
    elif depth < 8 and isinstance(part, (set, frozenset)):
        items = sorted(identity(v, depth + 1) for v in part)
    elif depth < 8 and isinstance(part, Mapping):
        items = sorted(identity(k, depth + 1) + b"=" + identity(v, depth + 1) for k, v in part.items())
    elif depth < 4:
        called = inspect.getattr_static(kind, "__call__", None)
        items = [identity(v, depth + 1) for v in (*_content(part), called if inspect.isfunction(called) else None)]
        items.append(_class_identity(kind, depth))
    return b"(" + b",".join([_named(kind).encode(), *items]) + b")"


_script: str | None = None


def sent_from(script: str) -> None:
    """Treat classes that were sent to this process by value as classes of the program's file `script`."""
    global _script
    _script = script


def _named(kind: type) -> str:
    """Return the last part of a class's module, and the class's name. For a script, the file's name replaces the
    module, because workers rename the module."""
    module = kind.__module__
    if _is_library(module):
        return f"{module}.{kind.__qualname__}"
    if module == "__main__" or module.startswith(ALONE):
        file = getattr(sys.modules.get(module), "__file__", None)
        file = _script if module == "__main__" and _script is not None else file
        module = os.path.splitext(os.path.basename(file or ""))[0]
    return f"{module.rpartition('.')[2]}.{kind.__qualname__}"


def _content(part: Any) -> list[Any]:
    """Return what pickle sends for an object, except caches, which are fields that begin with ``_``."""
    reduced: Any = None, (), getattr(part, "__dict__", None)
    if type(part).__module__.partition(".")[0] not in BY_NAME_ALONE:
        reduce: Any = copyreg.dispatch_table.get(type(part), lambda value: value.__reduce_ex__(4))
        with suppress(Exception):  # it cannot be pickled
            reduced = reduce(part)
    if isinstance(reduced, str):  # the name of a global
        return [reduced]
    sent: list[Any] = [*reduced, None]
    fields = sent[2] if isinstance(sent[2], tuple) else (sent[2],)
    public = [{n: v for n, v in f.items() if str(n)[:1] != "_"} if isinstance(f, dict) else f for f in fields]
    return [sent[1], *public, *(list(items) for items in sent[3:5] if items is not None)]


def _class_identity(kind: type, depth: int = 0) -> bytes:
    """Return bytes that identify a class: the name for a library's class, otherwise source, public values and bases."""
    text = _named(kind)
    if _is_library(kind.__module__):
        return text.encode()
    with suppress(OSError, TypeError, KeyError):  # tvm raises KeyError if the class's module is gone
        text = f"{text}\n{normalised(inspect.getsource(kind))}"
    values = [v for n, v in vars(kind).items() if depth < 4 and n[:1] != "_" and not hasattr(type(v), "__get__")]
    return b"\0".join([text.encode(), *(identity(v, depth + 1) for v in (*values, *kind.__bases__))])


def lambda_body(code: CodeType) -> str:
    """Return the text of a lambda's body from its file. Raises `OSError` if the source is missing."""
    positions = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    lines = [line.encode() for line in linecache.getlines(code.co_filename)]
    if not positions or not lines or code.co_filename == "<string>":  # Python 3.13 has lines for `python -c`
        raise OSError("no source")
    start = min((p[0] or 0, p[2] or 0) for p in positions)
    end = max((p[1] or 0, p[3] or 0) for p in positions)
    if end[0] > len(lines):
        raise OSError("no source")
    body = lines[start[0] - 1 : end[0]]
    body[-1] = body[-1][: end[1]]
    body[0] = body[0][start[1] :]
    return b"".join(body).decode()


def constraint_text(constraint: Callable[..., Any]) -> str:
    """Return a constraint in readable form: a lambda's source, or the name, file and line of a function."""
    code = getattr(constraint, "__code__", None)
    name = getattr(constraint, "__name__", type(constraint).__name__)
    if code is None:
        return str(name)
    if name != "<lambda>":
        return f"{name} ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})"
    parameters = ", ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    try:
        return f"lambda {parameters}: {' '.join(lambda_body(code).split())}"
    except OSError:
        return f"lambda {parameters} (line {code.co_firstlineno})"


def _code_text(code: CodeType) -> str:
    """Return a text that identifies a code object without its source. The `repr` of code would contain an address."""
    consts = [_code_text(c) if isinstance(c, CodeType) else _data_identity(c, 0) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, consts))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# ---- kernels


def function_of(kernel: Any) -> Any:
    """Return the Python function that `@tilelang.jit` wraps, or `kernel` itself if it is not wrapped."""
    inner = getattr(kernel, "func", None)
    own = getattr(kernel, "orig_func", None)  # a PrimFunc or a macro has `orig_func`
    if inspect.isfunction(own) or isinstance(kernel, functools.partial):
        return own or kernel
    return getattr(inner, "orig_func", None) or (inner if inspect.isfunction(inner) else kernel)


def signature_of(kernel: Any) -> inspect.Signature:
    """Return the `workload_signature` of `kernel` if it declares one, or else the signature of its function."""
    own = getattr(kernel, "workload_signature", None)
    return own if isinstance(own, inspect.Signature) else inspect.signature(function_of(kernel))


def launch_hints(kernel: Any) -> frozenset[str]:
    """Return the names of those launch hints that are not arguments of `kernel`."""
    parameters = inspect.signature(function_of(kernel)).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return frozenset() if takes_any else LAUNCH_HINTS - parameters.keys()


def is_compiled(kernel: Any) -> bool:
    """Tell whether `kernel` is a compiled `tilelang.JITKernel`, and not the function that makes the kernel."""
    return hasattr(type(kernel), "prim_func") and hasattr(type(kernel), "adapter")


def is_autotuned(kernel: Any) -> bool:
    """Tell whether a kernel has a tuning decorator, so that `workload_for` returns the workload for a problem."""
    return getattr(type(kernel), "is_autotuned", False) is True


def parts_of(workload: Workload) -> list[tuple[str, Any]]:
    parts = [("kernel", workload.kernel), ("inputs", workload.inputs), ("reference", workload.reference)]
    parts += [("check", workload.check), ("setup", workload.setup)]
    parts += [(f"constraint {i}", c) for i, c in enumerate(workload.space.where)]
    return [(label, part) for label, part in parts if part is not None]


def global_names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals in `code`, and in its inner functions, such as the PrimFunc."""
    for each in _codes(code):
        yield from each.co_names


def annotation_names(function: Any) -> list[str]:
    """Return the names of globals in annotations of `function` and of its inner functions, according to the source.

    tilelang evaluates quoted annotations, and all annotations under ``from __future__ import annotations``, although no
    code object has their names. Names that are local to `function` are left out, even if globals share the name.
    """
    try:
        tree = parse_module(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            with suppress(*_NO_TREE):
                annotation = parse_expression(annotation.value).body
        if isinstance(annotation, ast.expr):
            names.update((inner.id, None) for inner in ast.walk(annotation) if isinstance(inner, ast.Name))
    code = function.__code__
    return [name for name in names if name not in {*code.co_varnames, *code.co_cellvars, *code.co_freevars}]


# ---- source texts


def normalised(text: str, without_defaults: Collection[str] = ()) -> str:
    """Return a source as text that does not change if only comments, docstrings or formatting change.

    `text`: the source of a function or a class, as returned by `inspect`. A text that is not Python is returned
    unchanged. Tuning decorators are removed, because their spaces are not part of the kernel. Defaults of parameters in
    `without_defaults` are also removed. The result is the same in all versions of Python.
    """
    try:
        [top] = parsed(text).body
        if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef):
            top.decorator_list = [decorator for decorator in top.decorator_list if not tunes(decorator)]
            if without_defaults:
                _drop_defaults(top.args, without_defaults)
        return _written(top)
    except _NO_TREE:
        return text


def normalised_expression(text: str) -> str:
    """Return an expression, such as the body of a lambda, in the form that `normalised` returns."""
    try:
        return _written(parse_expression(f"({text}\n)").body)
    except _NO_TREE:
        return text


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a part of a file. The part may be indented. Raises `SyntaxError`."""
    if not text[:1].isspace():
        return parse_module(text)
    # textwrap.dedent would change multi-line strings whose lines begin further left.
    [block] = parse_module(f"if 1:\n{text}").body
    assert isinstance(block, ast.If)
    return ast.Module(block.body, [])


def tunes(decorator: ast.expr) -> bool:
    """Tell by the name of a decorator whether it tunes. The decorator may come from atune or from another tuner."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "autotune"


def _drop_defaults(arguments: ast.arguments, names: Collection[str]) -> None:
    """Remove the defaults of `names`, and store all other defaults by name instead of by position."""
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    kept = [(arg.arg, value) for arg, value in zip(with_default, arguments.defaults, strict=True)]
    kept += [(a.arg, v) for a, v in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if v is not None]
    arguments.defaults = []
    arguments.kw_defaults = [ast.Tuple([ast.Constant(n), v], ast.Load()) for n, v in kept if n not in names]


def _written(node: object) -> str:
    """Return a tree as text, like `ast.dump`, but without docstrings, empty fields, and the fields in `_SILENT`."""
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!a}"
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields if name not in _SILENT)
        parts = (f"{name}={_written(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(parts)})"
    if isinstance(node, list):
        nodes = [child for child in node if not _is_text(child)] or [ast.Pass()]
        return f"[{', '.join(map(_written, nodes))}]"
    return repr(node)


def _is_text(node: object) -> bool:
    """Tell whether a node is a string on its own, such as a docstring, which Python and tilelang ignore."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def parse_module(text: str) -> ast.Module:
    """Return the syntax tree of a file with this text. Raises `SyntaxError`."""
    return _tried(lambda: ast.parse(text))


def parse_expression(text: str) -> ast.Expression:
    return _tried(lambda: ast.parse(text, mode="eval"))


def _tried(parse: Callable[[], T]) -> T:
    for _ in range(PARSE_TRIES - 1):
        try:
            return parse()
        except SystemError:
            pass
    return parse()


def show(texts: Mapping[str, str]) -> None:
    """Make tracebacks and `inspect` use `texts` as the contents of files. tilelang reads kernels through `inspect`."""
    for name, text in texts.items():
        # An mtime of None marks an entry without a file, which checkcache() keeps.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def show_source(functions: Iterable[Any], text: str) -> None:
    """Make `text` the source of `functions`, and of the functions of `text` that they use, under a file name of its
    own. Otherwise, all texts that `exec` runs share a name such as ``<string>``, and Python shows one for another.

    `functions`: the first one is a function of `text`. If its file exists, nothing changes. If it was not compiled from
    `text`, for example because `text` was dedented before it ran, `text` is shown under the old file name.
    """
    waiting = list(map(function_of, functions))
    module, code = getattr(waiting[0], "__module__", None), getattr(waiting[0], "__code__", None)
    if code is None or os.path.exists(code.co_filename):
        return
    file = f"<source {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    own, seen = set[CodeType](), set[int]()
    with suppress(*_NO_TREE):
        inherited = code.co_flags & annotations.compiler_flag
        own = {*_codes(compile(text, file, "exec", inherited, dont_inherit=True))}  # equality ignores file names
    show({file if code in own else code.co_filename: text})
    while waiting and code in own:
        each = waiting.pop()
        if id(each) in seen or (isinstance(each, FunctionType) and each.__code__ not in own):
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            each.__code__ = _in_file(each.__code__, file)
        if isinstance(each, _HOLDERS) or type(each).__module__ == module != "builtins":
            waiting += gc.get_referents(each)


_HOLDERS = FunctionType, MethodType, CellType, dict, list, tuple, type, staticmethod, classmethod, functools.partial
"""Types of objects, besides those of the user's classes, that may hold a function."""


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of its inner functions."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _in_file(code: CodeType, file: str) -> CodeType:
    inner = tuple(_in_file(const, file) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)


def keep_texts() -> None:
    """Make `inspect` return the texts that it has already read, even if the files are edited later."""
    for name, entry in linecache.cache.copy().items():
        if len(entry) == 4:
            linecache.cache[name] = (entry[0], None, entry[2], entry[3])


def written_since(when: float) -> list[str]:
    """Return the files of this process's modules that were changed after `when`."""
    files = {file for module in sys.modules.copy().values() if (file := getattr(module, "__file__", None))}
    return sorted(file for file in files if os.path.exists(file) and os.path.getmtime(file) > when)
