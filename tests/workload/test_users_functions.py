"""The user's functions are named, whatever they raise."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

import atune
from atune.engine.search.interface import Guarded
from atune.errors import SpaceError, StrategyError, WorkloadError
from atune.model.space import Space


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
    with pytest.raises(SpaceError, match=rf"configs raised after 0: {says}"):
        Space(raises(error)() for _ in range(2))
    with pytest.raises(WorkloadError, match=rf"flops raised {says}"):
        atune.Workload(lambda k: k, Space(k=[1]), flops=lambda: raises(error)())
    own = type("Own", (), {"name": "own", "ask": raises(error), "tell": raises(error)})()
    with pytest.raises(StrategyError, match=rf"'own': ask\(\) raised {says}"):
        Guarded(own, range(3)).ask()
    with pytest.raises(StrategyError, match=rf"'own': tell\(1, None, 'lower'\) raised {says}"):
        Guarded(own, range(3)).tell(1, None, "lower")


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
