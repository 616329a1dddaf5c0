"""Source texts: their syntax trees, what decides of them, the texts that a process has read, and those written since.

Comments, docstrings and formatting decide nothing.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)
TRIES = 5
"""CPython 3.11 may raise `SystemError` for right source while another thread parses (its issue 106905)."""
_SILENT = frozenset({"kind", "type_comment", "type_ignores", "str"})
"""Fields of the syntax tree for spelling only: a string's prefix, type comments, a template's own text."""
_NO_TREE = (SyntaxError, ValueError, RecursionError, MemoryError)


def normalised(text: str, without_defaults: Collection[str] = ()) -> str:
    """Return a text that ignores comments, docstrings and formatting.

    `text`: source of a function or a class, as `inspect` returns it. Text that is not Python is returned unchanged.
    Tuning decorators are removed, because their space is not part of the kernel. Defaults of the function's
    parameters in `without_defaults` are removed too. All versions of Python return the same text.
    """
    try:
        [top] = parsed(text).body
        if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef):
            top.decorator_list = [one for one in top.decorator_list if not tunes(one)]
            if without_defaults:
                _drop_defaults(top.args, without_defaults)
        return _written(top)
    except _NO_TREE:
        return text


def normalised_expression(text: str) -> str:
    """Normalise one expression, such as a lambda's body, like `normalised`."""
    try:
        return _written(parse_expression(f"({text}\n)").body)
    except _NO_TREE:
        return text


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a piece of a file with any indentation. Raises `SyntaxError`."""
    if not text[:1].isspace():
        return parse_module(text)
    # textwrap.dedent would change the content of multi-line strings that begin further left.
    [block] = parse_module(f"if 1:\n{text}").body
    assert isinstance(block, ast.If)
    return ast.Module(block.body, [])


def tunes(decorator: ast.expr) -> bool:
    """Tell by its name whether a decorator is atune's or another tuner's."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "autotune"


def _drop_defaults(arguments: ast.arguments, names: Collection[str]) -> None:
    """Remove the defaults of `names`. Map the other defaults to parameter names instead of positions."""
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    kept = [(arg.arg, value) for arg, value in zip(with_default, arguments.defaults, strict=True)]
    kept += [(a.arg, v) for a, v in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if v is not None]
    arguments.defaults = []
    arguments.kw_defaults = [ast.Tuple([ast.Constant(n), v], ast.Load()) for n, v in kept if n not in names]


def _written(node: object) -> str:
    """Return a tree as text, like `ast.dump`, without docstrings, empty fields and the fields in `_SILENT`."""
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!a}"
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields if name not in _SILENT)
        parts = (f"{name}={_written(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(parts)})"
    if isinstance(node, list):
        nodes = [one for one in node if not _is_text(one)] or [ast.Pass()]
        return f"[{', '.join(map(_written, nodes))}]"
    return repr(node)


def _is_text(node: object) -> bool:
    """Tell whether a node is a bare string, such as a docstring. Python and tilelang ignore it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def parse_module(text: str) -> ast.Module:
    """Return the syntax tree of a file's text. Raises `SyntaxError`."""
    return _tried(lambda: ast.parse(text))


def parse_expression(text: str) -> ast.Expression:
    """Return the syntax tree of one expression. Raises `SyntaxError`."""
    return _tried(lambda: ast.parse(text, mode="eval"))


def _tried(parse: Callable[[], T]) -> T:
    for _ in range(TRIES - 1):
        try:
            return parse()
        except SystemError:
            pass
    return parse()


def show(texts: Mapping[str, str]) -> None:
    """Make inspect and tracebacks use `texts` as contents of the named files. tilelang reads kernels by inspect."""
    for name, text in texts.items():
        # mtime None marks an entry without a file, which checkcache() keeps.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def keep_texts() -> None:
    """Have inspect return the texts that it has read so far, also after their files were edited."""
    for name, entry in linecache.cache.copy().items():
        if len(entry) == 4:
            linecache.cache[name] = (entry[0], None, entry[2], entry[3])


def written_since(when: float) -> list[str]:
    """Return the files of this process's modules that were written after `when`."""
    files = {file for module in sys.modules.copy().values() if (file := getattr(module, "__file__", None))}
    return sorted(file for file in files if os.path.exists(file) and os.path.getmtime(file) > when)
