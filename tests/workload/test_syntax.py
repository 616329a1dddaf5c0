"""Syntax trees in programs with threads: an interpreter's passing error is tried again, a mistake is not."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from atune.workload.source_text import TRIES, parse_expression, parse_module


class Parse:
    """Stands in for `ast.parse`, and fails at first as CPython 3.11 does while another thread parses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
        self.calls, self._fails, self._parse = 0, fails, ast.parse
        monkeypatch.setattr(ast, "parse", self)

    def __call__(self, *args: Any, **options: Any) -> ast.AST:
        self.calls += 1
        if self.calls <= self._fails:
            raise SystemError("AST constructor recursion depth mismatch (before=60, after=46)")
        return self._parse(*args, **options)


@pytest.mark.parametrize("fails", [0, TRIES - 1])
def test_an_error_that_passes_is_tried_again(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    parse = Parse(monkeypatch, fails)
    assert ast.unparse(parse_module("x = 1")) == "x = 1" and parse.calls == fails + 1
    parse.calls = 0
    assert ast.unparse(parse_expression("a + b")) == "a + b" and parse.calls == fails + 1


def test_an_error_that_stays_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Parse(monkeypatch, TRIES)
    with pytest.raises(SystemError, match="recursion depth"):
        parse_module("x = 1")
    assert parse.calls == TRIES


def test_a_mistake_in_the_source_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Parse(monkeypatch, 0)
    with pytest.raises(SyntaxError):
        parse_expression("a b")
    assert parse.calls == 1
