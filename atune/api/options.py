"""Typed options of a run, shared by `tune`, `run`, `resume` and `run_resume`. `Tuner` spells them out."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from atune.api.priors import GivenPrior
from atune.api.warm import Warm
from atune.cluster.address import Cluster
from atune.engine.interfaces import Machine
from atune.errors import UsageError
from atune.journal.events import Event
from atune.model.options import refuse_unknown
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.reporting.log import EventLog
from atune.search.interface import Strategy
from atune.workload.workload import Workload


class RunOptions(TypedDict, total=False):
    """Options of a new or resumed run. `atune.tune` documents each."""

    target: str
    devices: str | Sequence[str | int]
    strategy: str | Strategy | None
    prior: GivenPrior
    seed: int
    budget: int | str | Budget | None
    audit: float | str | bool | None
    pipeline: bool
    compile: CompileSettings | None
    benchmark: BenchmarkSettings | None
    on_event: Callable[[Event], None] | None
    log: EventLog | None
    progress: bool
    accept: Sequence[str]
    cluster: str | Cluster | None
    machine: Machine | None


class TuneOptions(RunOptions, total=False):
    """Options of a new run, with the journal to write."""

    journal: str | os.PathLike[str] | None
    warm: Warm


_OF_AUTOTUNE = ("key", "do_not_specialize", "hints", "on_miss", "shipped", "cache")
ELSEWHERE = {
    **{name: f"atune.Workload(…, {name}=…)" for name in inspect.signature(Workload).parameters},
    **{name: f"compile=CompileSettings({name}=…)" for name in CompileSettings.__struct_fields__},
    **{name: f"benchmark=BenchmarkSettings({name}=…)" for name in BenchmarkSettings.__struct_fields__},
    **{name: f"@atune.autotune({name}=…)" for name in _OF_AUTOTUNE},
    "where": "atune.Space(…, where=…)",
}
"""How to write options that belong to another object, by name."""


def named(where: str, given: Mapping[str, object], kind: type[Any] = TuneOptions) -> dict[str, Any]:
    """Return the options `given`.

    Raises `UsageError` for a name that `kind` lacks. The message names `where` and suggests the right name.
    """
    refuse_unknown(where, given, [*kind.__annotations__], ELSEWHERE)
    return dict(given)


def check_settings(compile: object, benchmark: object, **switches: object) -> None:
    """Raise `UsageError` unless these are settings objects and each of `switches` is True or False."""
    for name, value, kind in (("compile", compile, CompileSettings), ("benchmark", benchmark, BenchmarkSettings)):
        if value is not None and not isinstance(value, kind):
            raise UsageError(f"{name}: give atune.{kind.__name__}(…), got {value!r}")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} must be True or False, got {value!r}")


def check_listener(on_event: object) -> None:
    """Raise `UsageError` unless `on_event` is a plain function of an event."""
    if on_event is None:
        return
    if not callable(on_event):
        raise UsageError(f"on_event must be a function of an event, got {on_event!r}")
    called = (on_event, inspect.getattr_static(type(on_event), "__call__", None))
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        raise UsageError(
            "on_event is called and not awaited, and must be a plain function; for async code read the events: "
            "`async with Tuner(...) as tuner: async for event in tuner.events(): ...`"
        )


def budget_of(options: Mapping[str, Any]) -> Budget:
    """Return the budget that the options of `tune` describe together."""
    return Budget.parse(options.get("budget")).having(audit=options.get("audit"))
