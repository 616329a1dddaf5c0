"""Fingerprints of workloads: a hash over the kernel's source, closure and globals, and the checks."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import linecache
import os
import sys
from collections.abc import Collection, Mapping
from types import BuiltinFunctionType, CodeType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import msgspec

from atune.workload.definition import (
    Workload,
    annotation_names,
    function_of,
    global_names,
    is_autotuned,
    is_compiled,
    parts_of,
)
from atune.workload.packing import LARGE_BYTES, LazyCallback, UnopenedCallback
from atune.workload.source_text import normalised, normalised_expression

LIBRARIES = frozenset({"atune", "tilelang", "torch", "tvm", "tvm_ffi"})
"""Packages whose functions count by name only: their versions are known, and their sources are deep."""


def fingerprint(workload: Workload, *, problem: bool = True) -> str:
    """Return a SHA-256 over the kernel's source and closure, the problem, and the checks of results.

    Comments, docstrings and formatting do not count. `problem`: False omits the problem's arguments, for callers
    with a separate key of the problem.
    """
    digest = hashlib.sha256()
    # Constraints do not count: the space has its own fingerprint, and may grow while the kernel stays.
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
    known = workload.arguments if problem else None
    digest.update(msgspec.json.encode([known, checks], order="deterministic", enc_hook=repr))
    return digest.hexdigest()


def kernel_fingerprint(kernel: Any, *, without_defaults: Collection[str] = ()) -> str:
    """Return a SHA-256 over a kernel's source and closure alone.

    `without_defaults`: parameters whose default values do not count.
    """
    return hashlib.sha256(identity(kernel, without_defaults=without_defaults)).hexdigest()


def identity(part: Any, depth: int = 0, without_defaults: Collection[str] = ()) -> bytes:
    """Return what a function, or data, counts as in a fingerprint: the same in the program and in its workers."""
    if isinstance(part, LazyCallback):
        return identity(part.func)
    if isinstance(part, UnopenedCallback):
        return part.identity
    if is_autotuned(part):
        return identity(part.kernel, depth)  # whatever it knows by now
    function = function_of(part)
    if not inspect.isfunction(function):
        return _data_identity(part, depth)
    if (function.__module__ or "").partition(".")[0] in LIBRARIES:
        return f"{function.__module__}.{function.__qualname__}".encode()
    try:
        # A lambda's source is the whole statement around it, for example a workload with its space.
        if function.__name__ == "<lambda>":
            text = _lambda_text(function.__code__)
        else:
            text = normalised(inspect.getsource(function), without_defaults)
    except (OSError, TypeError):
        text = _code_text(function.__code__)
    cells = [c.cell_contents for c in function.__closure__ or () if depth < 4 and _filled(c)]
    names = dict.fromkeys((*global_names(function.__code__), *annotation_names(function))) if depth < 4 else {}
    used = [function.__globals__[n] for n in names if n in function.__globals__]
    inner = [
        identity(v, depth + 1)
        for v in (*cells, *used, *_defaults(function, without_defaults))
        if not isinstance(v, ModuleType)
    ]
    return b"\0".join([text.encode(), *inner])


def _defaults(function: Any, without: Collection[str]) -> list[Any]:
    """Return the default values of a function's parameters, except those in `without`."""
    values = function.__defaults__ or ()
    code = function.__code__
    named = dict(zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True))
    return [value for name, value in {**named, **(function.__kwdefaults__ or {})}.items() if name not in without]


def _data_identity(part: Any, depth: int) -> bytes:
    """Return a text that identifies data: values by content, tensors by metadata, functions by source.

    For other objects, the type and the fields count, because a `repr` may hold an address.
    """
    if isinstance(part, bytes) and len(part) >= LARGE_BYTES:  # its `repr` would be four times as long
        return f"{len(part)} bytes: {hashlib.sha256(part).hexdigest()}".encode()
    if part is None or isinstance(part, (str, bytes, int, float, complex)):
        return repr(part).encode()
    if isinstance(part, type):
        return _class_identity(part)
    if part is os.environ:
        return b"os.environ"  # its values differ between the workers of one run
    if type(part).__module__.partition(".")[0] == "torch":
        return _torch_identity(part)
    if is_compiled(part):
        return str(part.prim_func).encode()
    if isinstance(own := getattr(type(part), "cache_identity", None), str):
        return own.encode()  # the key already covers its content
    if isinstance(part, MethodType):
        return identity(part.__func__, depth + 1) + b"@" + identity(part.__self__, depth + 1)
    if isinstance(part, BuiltinFunctionType | MethodDescriptorType):
        return f"{part.__module__ if hasattr(part, '__module__') else ''}.{part.__qualname__}".encode()
    items: list[bytes] = []
    if depth < 8 and isinstance(part, functools.partial):
        items = [identity(v, depth + 1) for v in (part.func, part.args, part.keywords)]
    elif depth < 8 and isinstance(part, enum.Enum):
        items = [part.name.encode()]
    elif depth < 8 and isinstance(part, (list, tuple)):
        items = [identity(v, depth + 1) for v in part]
    elif depth < 8 and isinstance(part, (set, frozenset)):
        items = sorted(identity(v, depth + 1) for v in part)
    elif depth < 8 and isinstance(part, Mapping):
        items = sorted(identity(k, depth + 1) + b"=" + identity(v, depth + 1) for k, v in part.items())
    elif depth < 4 and isinstance(fields := getattr(part, "__dict__", None), dict):
        called = inspect.getattr_static(type(part), "__call__", None)
        public = {name: value for name, value in fields.items() if not name.startswith("_")}  # other fields are caches
        items = [identity(public, depth + 1), identity(called, depth + 1) if inspect.isfunction(called) else b""]
        items.append(_class_identity(type(part)))
    return b"(" + b",".join([repr(type(part)).encode(), *items]) + b")"


def _class_identity(kind: type) -> bytes:
    """Return a text that identifies a class: its source, or its name for classes of libraries and of Python."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if (top := kind.__module__.partition(".")[0]) in LIBRARIES or top in sys.stdlib_module_names:
        return name.encode()
    try:
        return f"{name}\n{normalised(inspect.getsource(kind))}".encode()
    except (OSError, TypeError):
        return name.encode()


def _torch_identity(part: Any) -> bytes:
    """Return a text that identifies a torch object: a tensor by dtype, shape, strides and device, not by its data."""
    if all(hasattr(part, name) for name in ("dtype", "shape", "stride", "device")):
        return repr((str(part.dtype), tuple(part.shape), part.stride(), str(part.device))).encode()
    return str(part).encode() if type(part).__name__ in ("dtype", "device", "Size") else repr(type(part)).encode()


def _lambda_text(code: CodeType) -> str:
    """Return a lambda's parameters and body, which identify it."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"lambda {names}: {normalised_expression(lambda_body(code))}"


def lambda_body(code: CodeType) -> str:
    """Return the body of a lambda as written in its file. Raises `OSError` if there is no source."""
    found = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    lines = [line.encode() for line in linecache.getlines(code.co_filename)]
    if not found or not lines or code.co_filename == "<string>":  # where Python 3.13 keeps the text of `python -c`
        raise OSError("no source")
    start = min((p[0] or 0, p[2] or 0) for p in found)
    end = max((p[1] or 0, p[3] or 0) for p in found)
    if end[0] > len(lines):
        raise OSError("no source")
    body = lines[start[0] - 1 : end[0]]
    body[-1] = body[-1][: end[1]]
    body[0] = body[0][start[1] :]
    return b"".join(body).decode()


def _code_text(code: CodeType) -> str:
    """Return a text that identifies code without source. Its `repr` holds an address."""
    consts = [_code_text(c) if isinstance(c, CodeType) else _data_identity(c, 0) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, consts))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
