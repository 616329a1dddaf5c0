"""Decorators in the wrong order: tilelang's above atune's, which tilelang answers with an error about source files."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from atune.errors import UsageError
from atune.system import syntax

OURS, TILELANGS = "autotune", ("jit", "lazy_jit")


def refuse_jit_above(function: Any) -> None:
    """Raise `UsageError` where the source of `function` has `@tilelang.jit` above `@atune.autotune`."""
    names = decorators_of(function)
    ours = names.index(OURS) if OURS in names else 0
    if above := [name for name in names[:ours] if name in TILELANGS]:
        raise UsageError(
            f"autotune: @tilelang.{above[0]} stands above @atune.autotune of {function.__name__!r}: swap the two, "
            "since autotune tunes what jit makes"
        )


def decorators_of(function: Any) -> list[str]:
    """Return the names of a function's decorators, from above, without their modules; none where it has no source."""
    try:
        tree = syntax.module(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return []
    found = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
    decorators = [] if found is None else found.decorator_list
    calls = [one.func if isinstance(one, ast.Call) else one for one in decorators]
    return [ast.unparse(one).rpartition(".")[2] for one in calls]
