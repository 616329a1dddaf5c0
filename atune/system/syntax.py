"""Syntax trees of Python source, in programs with threads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)

TRIES = 5
"""CPython 3.11 may raise `SystemError` for right source while another thread parses (its issue 106905)."""


def module(text: str) -> ast.Module:
    """Return the syntax tree of a file's text. Raises `SyntaxError`."""
    return _parsed(lambda: ast.parse(text))


def expression(text: str) -> ast.Expression:
    """Return the syntax tree of one expression. Raises `SyntaxError`."""
    return _parsed(lambda: ast.parse(text, mode="eval"))


def _parsed(parse: Callable[[], T]) -> T:
    for _ in range(TRIES - 1):
        try:
            return parse()
        except SystemError:
            pass
    return parse()
