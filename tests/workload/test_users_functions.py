"""The user's functions are called through one wrapper, which names them, whatever they raise or answer."""

from __future__ import annotations

import ast
import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import atune
from atune.errors import SpaceError, WorkloadError
from atune.model.space import Space

SOURCES = Path(atune.__file__).parent
FOLDERS = ("model", "workload", "engine", "stages")
FUNCTIONS = {"reference", "check", "setup", "inputs", "given"}
"""Names under which functions of the user's are called; `given` is that of an amount, such as flops."""
OF_OWNERS = {(owner, name) for owner in ("work", "._work", "workload") for name in FUNCTIONS}
OF_OWNERS |= {("self", "_function"), (".strategy", "ask"), (".strategy", "tell")}
WRAPPERS = {"ask", "asked", "_asked"}


class Odd:
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


RAISED = [SystemExit("no licence"), RuntimeError("broken"), BaseExceptionGroup("several", [KeyboardInterrupt()])]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_is_no_exception_is_named_too(error: BaseException) -> None:
    says = type(error).__name__
    with pytest.raises(SpaceError, match=rf"constraint on .* raised {says}"):
        list(Space(k=[0, 1], where=lambda k: raises(error)()).points({}).walk())
    with pytest.raises(SpaceError, match=rf"axis 'k' raised {says}"):
        list(Space(k=lambda: raises(error)()).points({}).walk())
    with pytest.raises(SpaceError, match=rf"axis 'k' raised {says}"):
        list(Space(k=lambda: (raises(error)() for _ in range(2))).points({}).walk())
    with pytest.raises(SpaceError, match=rf"the generator raised after 0 configs: {says}"):
        Space(raises(error)() for _ in range(2))
    with pytest.raises(WorkloadError, match=rf"flops raised {says}"):
        atune.Workload(lambda k: k, Space(k=[1]), flops=lambda: raises(error)())


def test_a_constraint_whose_answer_has_no_truth_is_named() -> None:
    with pytest.raises(SpaceError, match=r"constraint on .* raised RuntimeError: no truth"):
        list(Space(k=[0], where=lambda k: Odd()).points({}).walk())


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), asyncio.CancelledError()], ids=lambda error: type(error).__name__
)
def test_interrupts_and_cancellations_pass_except_in_workers(error: BaseException) -> None:
    space = Space(k=[0], where=lambda k: raises(error)())
    with pytest.raises(type(error)):
        list(space.points({}).walk())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as workers do
    try:
        with pytest.raises(SpaceError, match=type(error).__name__):
            list(space.points({}).walk())
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_function_of_the_users_is_called_directly() -> None:
    modules = [path for folder in FOLDERS for path in (SOURCES / folder).rglob("*.py") if path.name != "packing.py"]
    assert not [f"{path}:{line}" for path in modules for line in direct_calls(ast.parse(path.read_text()))]
    assert list(direct_calls(ast.parse("answer = work.reference(x)\nasked(lambda: check(x), raised)"))) == [1]


def direct_calls(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of a module that call a function of the user's, and not for the wrapper."""
    wrapped = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and name_of(call) in WRAPPERS]
    given = {argument.id for call in wrapped for argument in call.args if isinstance(argument, ast.Name)}
    inside = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name in given]
    allowed = {id(node) for outer in (*wrapped, *inside) for node in ast.walk(outer)}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or id(call) in allowed:
            continue
        owner = ""
        if isinstance(call.func, ast.Attribute):
            of = call.func.value
            owner = f".{of.attr}" if isinstance(of, ast.Attribute) else getattr(of, "id", "a call")
        if (owner, name_of(call)) in OF_OWNERS or (not owner and name_of(call) in FUNCTIONS):
            yield call.lineno


def name_of(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))
