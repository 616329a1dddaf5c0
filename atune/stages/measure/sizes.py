"""Symbolic dimensions, as texts, and their values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from atune.system import syntax

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def size_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a symbolic dimension: a name, or sums and products of names and numbers; None without one."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
        raise KeyError(text)

    try:
        return sizes[text] if text in sizes else value(syntax.expression(text).body)
    except (KeyError, SyntaxError):
        return None
