"""tilelang's rewriting of kernel functions, once for each function's code instead of once for each candidate.

`tilelang.language.eager.ast.mutate` reads a function's source, parses, rewrites and compiles it. It does so for each
`T.prim_func` and `T.macro` that lowering a candidate comes by, a dozen for a GEMM, and a candidate's functions differ
from the last one's in what their closures hold alone. What the rewriting takes from a closure are its variables' names
and the values of a few expressions, such as the ``T.Kernel`` of a ``with``; `Memo` keeps both beside the rewritten code
and rewrites anew where they differ. The code is then bound to each function's own closure, as it was before. A source
is thus read once: editing it while a run lasts changes nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from atune.model.candidate import Candidate
from atune.stages.accelerators.base import Accelerator, Host, unless_known
from atune.stages.compile.steps import LowerJob, Modules

KEPT = 128
"""Rewritten functions that are kept; the one that was not used for longest goes first."""
HOLDERS = ("tilelang.language.eager.ast", "tilelang.language.eager.builder")
"""Modules with the name `mutate`. Looking through all modules would copy pages that a worker shares with its server."""
_STEPS = {
    "get_ast", "getsourcefile", "getfile", "get_func_nonlocals", "DSLMutator", "__globals__", "Path", "absolute",
    "visit", "get_compiled_object", "IRGenerator", "unparse", "extra_type_hints",
}  # fmt: skip
_BESIDE = {"utils", "inspect", "ast", "str"}
"""The names in tilelang's `mutate`, those of what it does and those that lead there: others make it another one."""
_READERS = {"__init__", "_try_eval", "visit_FunctionDef"}
"""The rewriter's methods that know of the closure: `_try_eval` takes values, the last one the variables' names."""


@dataclass(frozen=True)
class LookUp:
    """An expression that the rewriting evaluated, and what came of it."""

    code: CodeType
    found: Any


@dataclass(frozen=True)
class Rewritten:
    """What `mutate` makes of a function's code."""

    code: CodeType
    globals: dict[str, Any]
    """Both are held here so that nothing else comes to have their ids."""
    look_ups: tuple[LookUp, ...]
    make_closure: Callable[..., Any]
    source: str
    hints: dict[str, Any]


class Memo:
    """Stands in for tilelang's `mutate`, with the same results. `rewrites` counts how often it had to rewrite."""

    def __init__(self, eager: Any) -> None:
        self.eager = eager
        self.original: Callable[[Any], Any] = eager.mutate
        self.rewrites = 0
        self._kept: OrderedDict[tuple[int, int, tuple[str, ...]], Rewritten] = OrderedDict()

    def __call__(self, func: Any) -> Any:
        """Return tilelang's `IRGenerator` for `func`. Raises what `mutate` raises."""
        if type(func) is not FunctionType or hasattr(func, "__wrapped__"):
            return self.original(func)
        if not os.path.isabs(func.__code__.co_filename):  # then the name in the result hangs on the working folder
            return self.original(func)
        closure: dict[str, Any] = self.eager.utils.get_func_nonlocals(func)
        key = id(func.__code__), id(func.__globals__), tuple(closure)
        known = self._kept.get(key)
        if known is None or not all(_evaluated(self.eager, u.code, closure, known) is u.found for u in known.look_ups):
            self._kept[key] = known = self._rewritten(func, closure)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self.eager.IRGenerator(
            gen=known.make_closure(**closure), source=known.source, extra_type_hints=dict(known.hints)
        )

    def _rewritten(self, func: FunctionType, closure: dict[str, Any]) -> Rewritten:
        """Do what `mutate` does before it binds the closure, and note what it evaluates."""
        self.rewrites += 1
        eager, look_ups = self.eager, []

        class Mutator(eager.DSLMutator):  # type: ignore[misc,name-defined]
            def _try_eval(self, node: ast.expr) -> Any:
                found = eager._try_eval(node, closure, func.__globals__)
                try:
                    code = compile(f"lambda {','.join(closure)}: {ast.unparse(node)}", "<string>", "eval")
                except Exception:  # then it cannot be evaluated in any closure with these names
                    return found
                look_ups.append(LookUp(code, found))
                return found

        tree = eager.utils.get_ast(func)
        filename = inspect.getsourcefile(func) or inspect.getfile(func)
        mutator = Mutator(closure, func.__globals__, str(Path(filename).absolute()))
        tree = mutator.visit(tree)
        make_closure = eager.utils.get_compiled_object(tree, "make_closure", filename, func.__globals__)
        hints = dict(mutator.extra_type_hints)
        return Rewritten(func.__code__, func.__globals__, tuple(look_ups), make_closure, ast.unparse(tree), hints)


def _evaluated(eager: Any, code: CodeType, closure: dict[str, Any], known: Rewritten) -> Any:
    """Evaluate as tilelang's `_try_eval` does, from compiled code."""
    try:
        return eval(code, known.globals)(**closure)
    except Exception:
        return eager._empty


class Rewriting(Accelerator):
    """Has a `Memo` in the place of `mutate` while a kernel is elaborated and lowered."""

    name, version = "rewriting", 1

    def __init__(self) -> None:
        self._memo: Memo | None = None

    def applies(self, host: Host) -> str:
        known = _as_expected(importlib.import_module(HOLDERS[0]))
        return unless_known(host) or ("" if known else "tilelang's rewriting is not built as it is known")

    def elaborate(self, candidate: Candidate, plain: Callable[[Candidate], Any]) -> Any:
        with self.in_place():
            return plain(candidate)

    def lower(self, job: LowerJob, plain: Callable[[LowerJob], Modules]) -> Modules:
        with self.in_place():
            return plain(job)

    @contextmanager
    def in_place(self) -> Iterator[Memo]:
        """Put the memo in the place of `mutate` in this process meanwhile."""
        self._memo = memo = self._memo or Memo(importlib.import_module(HOLDERS[0]))
        modules: list[Any] = [module for module in map(sys.modules.get, HOLDERS) if hasattr(module, "mutate")]
        before = [module.mutate for module in modules]
        for module in modules:
            module.mutate = memo
        try:
            yield memo
        finally:
            for module, mutate in zip(modules, before, strict=True):
                module.mutate = mutate


def _as_expected(eager: Any) -> bool:
    """Tell whether `mutate` and what it is made of are those that `Memo` stands in for."""
    try:
        used = set(eager.mutate.__code__.co_names)
        return (
            used - _BESIDE == _STEPS
            and list(inspect.signature(eager.mutate).parameters) == ["func"]
            and list(inspect.signature(eager.DSLMutator).parameters) == ["nonlocals", "globals", "filename"]
            and {name for name, method in vars(eager.DSLMutator).items() if _reads_closure(method)} == _READERS
            and list(inspect.signature(eager.DSLMutator._try_eval).parameters) == ["self", "node"]
            and list(inspect.signature(eager._try_eval).parameters) == ["node", "nonlocals", "globals"]
            and [field.name for field in fields(eager.IRGenerator)] == ["gen", "source", "extra_type_hints"]
            and list(inspect.signature(eager.utils.get_ast).parameters) == ["func"]
            and list(inspect.signature(eager.utils.get_func_nonlocals).parameters) == ["func"]
            and list(inspect.signature(eager.utils.get_compiled_object).parameters)
            == ["source", "name", "filename", "globals"]
            and eager._empty is not None
        )
    except (AttributeError, TypeError, ValueError):
        return False


def _reads_closure(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and not {"nonlocals", "globals"}.isdisjoint(code.co_names)
