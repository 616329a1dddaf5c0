"""A kernel's definition, which a worker finds for `atune apply`, and edits of its default arguments."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from atune.errors import UsageError, WorkloadError, type_of
from atune.workload.definition import function_of
from atune.workload.fingerprint import kernel_fingerprint
from atune.workload.pickling import FileRef, chosen, load_named
from atune.workload.source_text import parse_module
from atune.workload.workload import Workload


class KernelSite(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel by file, name and first line, as Python compiled it.

    `workload`: the workload's name. `path`: empty if the kernel is not a function. `kernel`: the fingerprint as in
    a journal's header.
    """

    workload: str
    kernel: str
    path: str = ""
    function: str = ""
    line: int = 0
    what: str = ""
    """The kind of kernel, such as a lambda, if it is not a function defined with def."""
    arguments: dict[str, Any] | None = None
    """The problem, if a workload was named."""
    default_in_decorator: bool = False
    """Whether the decorator's ``default=`` overrides the kernel's own."""


class Sought(msgspec.Struct, frozen=True):
    """The kernel to find. `names`: parameters that its space sets, as far as the journal shows."""

    ref: FileRef
    names: tuple[str, ...]


def locate(sought: Sought) -> KernelSite:
    """Load the named object: a `Workload`, a decorated kernel, or a kernel. Raises `WorkloadError`."""
    ref = chosen(sought.ref)
    named = load_named(ref)
    if isinstance(named, Workload):
        site = site_of(named.kernel, named.name, sought.names)
        return msgspec.structs.replace(site, arguments=named.arguments)
    options = getattr(named, "options", None)  # of a kernel under @atune.autotune
    kernel = getattr(named, "kernel", named) if options is not None else named
    if not callable(kernel):
        raise WorkloadError(f"{ref.origin} is {type_of(named)}: give a Workload or a kernel")
    given: dict[str, Any] = getattr(options, "workload", {})
    site = site_of(kernel, str(given.get("name") or getattr(kernel, "__name__", "")), sought.names)
    return msgspec.structs.replace(site, default_in_decorator=given.get("default") is not None)


def site_of(kernel: Any, name: str, names: Collection[str]) -> KernelSite:
    """Return the definition of `kernel`. `names` is as for `Sought`."""
    function, digest = function_of(kernel), kernel_fingerprint(kernel, without_defaults=names)
    name = name or str(getattr(function, "__name__", ""))
    function = _taking(function, names)
    if not inspect.isfunction(function):
        return KernelSite(workload=name, kernel=digest, what=f"a {type(function).__qualname__}")
    code = function.__code__
    if code.co_name == "<lambda>":
        return KernelSite(workload=name, kernel=digest, what="a lambda")
    return KernelSite(
        workload=name, kernel=digest, path=code.co_filename, function=code.co_name, line=code.co_firstlineno
    )


def _taking(function: Any, names: Collection[str]) -> Any:
    """Return the function with parameters of those `names` under wrappers that pass all on, as `functools.wraps` marks.

    `function` itself, if there is none.
    """
    found = function
    while found is not None:
        code = getattr(found, "__code__", None)
        if code is not None and set(names) <= {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}:
            return found
        found = getattr(found, "__wrapped__", None)
    return function


_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Change(NamedTuple):
    """A default value before and after, as source text. `before` is None for a new default."""

    name: str
    before: str | None
    after: str


class _Parameter(NamedTuple):
    """A parameter and its default. `blocked_by`: a later parameter without default, which forbids one here."""

    arg: ast.arg
    default: ast.expr | None
    blocked_by: str


class _Edit(NamedTuple):
    """A span of the file, in bytes of UTF-8, and its replacement."""

    start: int
    end: int
    text: str


def write_defaults(text: str, name: str, line: int, values: Mapping[str, Any]) -> tuple[str, list[Change]]:
    """Return `text` with `values` as defaults of the function `name` that begins in `line`, and the changes.

    Only the spans of default values change. A missing default is added where Python allows it. A value that is
    already right keeps its spelling. Raises `UsageError` with the reasons if a value has no place. Then nothing is
    changed.
    """
    source = _Source(text)
    function = source.function(name, line)
    parameters, wrong = _parameters(function, values), []
    for wanted, value in values.items():
        if wanted not in parameters:
            wrong.append(_no_parameter(function, wanted, value))
        elif why := source.set_default(parameters[wanted], value):
            wrong.append(why)
    if wrong:
        lines = "".join(f"\n  {one}" for one in wrong)
        raise UsageError(f"the defaults of {name}, line {function.lineno}, cannot be written:{lines}")
    edited = source.edited()
    _check(edited, name, line, values)
    return edited, source.changes


def literal(value: Any) -> str:
    """Return plain data as Python source in ASCII, with double quotes if possible."""
    if isinstance(value, str):
        plain = value.isascii() and value.isprintable() and not re.search(r"[\"\\]", value)
        return f'"{value}"' if plain else ascii(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return ascii(value)


class _Source:
    """The text of a file, and its planned edits."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self._lines = [0, *(found.end() for found in re.finditer(rb"\r\n|\r|\n", self._bytes))]
        self._tree = parse_module(text)
        self._edits: list[_Edit] = []
        self.changes: list[Change] = []

    def function(self, name: str, line: int) -> _Function:
        """Return the function that begins in `line`, with its decorators. Raises `UsageError`."""
        for node in ast.walk(self._tree):
            if not isinstance(node, _Function) or node.name != name:
                continue
            if line in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
                return node
        raise UsageError(f"line {line} of the file does not begin a function {name!r}: reload the file, and try again")

    def set_default(self, parameter: _Parameter, value: Any) -> str:
        """Plan the edit that makes `value` the default. Returns the reason if there is none."""
        arg, default, blocked_by = parameter
        if default is not None:
            return self._replace(arg.arg, default, value)
        if blocked_by:
            return f"{arg.arg} has no default and can have none, for {blocked_by} after it has none"
        end = self._place(arg.end_lineno, arg.end_col_offset)
        self._edits.append(_Edit(end, end, f"{'=' if arg.annotation is None else ' = '}{literal(value)}"))
        self.changes.append(Change(arg.arg, None, literal(value)))
        return ""

    def _replace(self, name: str, node: ast.expr, value: Any) -> str:
        start, end = self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)
        before = self._bytes[start:end].decode()
        try:
            was = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return f"the default of {name} is {' '.join(before.split())}, not a literal: set it to {literal(value)}"
        if not _same(was, value):
            after = literal(list(value) if isinstance(was, list) and isinstance(value, tuple) else value)
            self._edits.append(_Edit(start, end, after))
            self.changes.append(Change(name, before, after))
        return ""

    def edited(self) -> str:
        data = self._bytes
        for start, end, text in sorted(self._edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()

    def _place(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None, "parsed from text"
        return self._lines[line - 1] + column


def _parameters(function: _Function, values: Mapping[str, Any]) -> dict[str, _Parameter]:
    """Return a function's parameters by name. Those in `values` shall have a default."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
    found, blocked_by = {}, ""
    for arg, default in reversed(list(zip(positional, defaults, strict=True))):
        found[arg.arg] = _Parameter(arg, default, blocked_by)
        if default is None and arg.arg not in values:
            blocked_by = blocked_by or arg.arg
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found[arg.arg] = _Parameter(arg, default, "")
    return found


def _no_parameter(function: _Function, name: str, value: Any) -> str:
    if function.args.kwarg is not None:
        return (
            f"{name} is taken by **{function.args.kwarg.arg}, which has no default: write {name}={literal(value)} out"
        )
    args = function.args
    there = ", ".join(arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs))
    return f"there is no parameter {name}; there is {there or 'none'}"


def _check(text: str, name: str, line: int, values: Mapping[str, Any]) -> None:
    """Check that the edited text has the wanted defaults."""
    found = _parameters(_Source(text).function(name, line), {})
    for wanted, value in values.items():
        default = found[wanted].default
        assert default is not None and _same(ast.literal_eval(default), value), f"{wanted} was written wrongly"


def _same(one: Any, other: Any) -> bool:
    """Tell whether a kernel sees the same value. Types count, except that lists equal tuples."""
    try:
        return msgspec.json.encode(one, order="deterministic") == msgspec.json.encode(other, order="deterministic")
    except (TypeError, ValueError, OverflowError):
        return False  # a space cannot hold the present value
