"""Access to the functions of a workload, without the wrappers around them."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any

from atune.workload.source_text import parse_module


def function_of(kernel: Any) -> Any:
    """Return the Python function inside `@tilelang.jit`'s wrapper, or `kernel` itself."""
    inner = getattr(kernel, "func", None)
    own = getattr(kernel, "orig_func", None)  # a PrimFunc or a macro
    if inspect.isfunction(own) or isinstance(kernel, functools.partial):
        return own or kernel
    return getattr(inner, "orig_func", None) or (inner if inspect.isfunction(inner) else kernel)


def annotation_names(function: Any) -> list[str]:
    """Return the names in the annotations of `function` and of its inner functions, from their source.

    Under ``from __future__ import annotations`` no code object uses them, but tilelang evaluates them.
    """
    try:
        tree = parse_module(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.expr):
            found.update((inner.id, None) for inner in ast.walk(annotation) if isinstance(inner, ast.Name))
    return list(found)


def signature_of(kernel: Any) -> inspect.Signature:
    """Return the parameters of `kernel`: those that it declares, or those of its function's signature."""
    own = getattr(kernel, "workload_signature", None)
    return own if isinstance(own, inspect.Signature) else inspect.signature(function_of(kernel))
