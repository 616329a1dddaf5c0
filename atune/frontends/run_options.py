"""The options of a run: of `tune`, `run`, `resume`, `run_resume` and `Tuner`, and of `atune tune`."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from msgspec import Meta

from atune.engine.strategy import STRATEGIES, check_given
from atune.errors import UsageError
from atune.model.device import parse_target
from atune.model.options import Natural, Settings, described, option, path
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.workload.workload_options import WorkloadOptions

if TYPE_CHECKING:
    from atune.engine.interfaces import Machine
    from atune.engine.strategy import Strategy
    from atune.frontends.warm_start import Warm
    from atune.journal.events import Event
    from atune.reporting.log import Log


StrategyName = Literal["auto", "exhaustive", "random", "prior", "bayesian"]
TargetName = Literal["auto", "cuda", "c"]
"""Names that an editor completes. Every other text is checked where it is given."""


def check_target(where: str, value: Any) -> Any:
    """Return `value`. Raises `TargetError` unless it is a target."""
    parse_target(value)
    return value


def _strategy(where: str, value: Any) -> Any:
    check_given(value)
    return value


def _settings(kind: type[Settings]) -> Callable[[str, Any], Any]:
    def check(where: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise UsageError(f"{where} must be atune.{kind.__name__}(…), got {value!r}")
        return value

    return check


def _listener(where: str, on_event: Any) -> Any:
    if not callable(on_event):
        raise UsageError(f"{where} must be a function of an event, got {on_event!r}")
    called = (on_event, inspect.getattr_static(type(on_event), "__call__", None))
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        raise UsageError(
            f"{where} is called and not awaited, and must be a plain function; for async code read the events: "
            "`async with Tuner(...) as tuner: async for event in tuner.events(): ...`"
        )
    return on_event


class EngineOptions(TypedDict, total=False):
    """Options of a run: what it does, and where."""

    # fmt: off
    target: Annotated[TargetName | str, option(
        "Target: auto, cuda, an arch such as sm_90a, or c. ``auto`` is CUDA if there is a GPU, else the CPU.",
        default="auto", check=check_target, flag="--target", group="where",
    )]
    devices: Annotated[str | Sequence[str | int], option(
        "Devices to measure on: all, cpu, or numbers of GPUs.",
        default="all", flag="--devices", metavar="all|cpu|0,1", repeat=True, group="where",
    )]
    cluster: Annotated[Annotated[str, Meta(pattern=r"\S")] | None, option(
        "Run on the nodes of a Ray cluster: auto, or its address. Needs ``ray``. `devices` and "
        "`CompileSettings.workers` then hold for each node.",
        must="must be auto, ray://HOST:10001 or HOST:6379", flag="--cluster", metavar="ADDRESS",
        unset="this machine alone", page="cluster.md",
        group="where",
    )]
    budget: Annotated[int | str | Budget | None, option(
        "Stop after N candidates, a share of them, or a time (90s, 2m, 1h). Or at the first of several (40,90s). With "
        "auto, after eight in a row of which none is 2 % faster. None tries the whole space. A budget covers all parts "
        "of a resumed run.",
        check=lambda where, value: Budget.parse(value),
        flag="--budget", metavar="N|10%|90s|auto", unset="all", page="search.md#budgets", group="search",
    )]
    strategy: Annotated["StrategyName | str | Strategy | None", option(
        f"How candidates are chosen: {', '.join(STRATEGIES)}. Or an object with a name, ``ask()`` and ``tell(index, "
        "latency_ms, reason)``. A resumed journal keeps its strategy.",
        check=_strategy, flag="--strategy", metavar="NAME", unset="auto, or the journal's", page="search.md",
        group="search",
    )]
    prior: Annotated[bool, option(
        "Begin a search with the candidates that the prior estimates to be fastest: on CUDA, under a budget and in "
        "spaces of more than 64 candidates. A strategy of your own can rank them otherwise.",
        default=True, page="search.md#the-prior",
    )]
    seed: Annotated[Natural, option(
        "Seed of the strategy. It determines all random draws.",
        default=0, flag="--seed", metavar="N", group="search",
    )]
    pipeline: Annotated[bool, option(
        "Measure candidates while others compile. False starts measuring after all compiling, for comparison.",
        default=True, flag="--pipeline", group="compiling",
    )]
    compile: Annotated[CompileSettings | None, option("`CompileSettings`.", check=_settings(CompileSettings))]
    benchmark: Annotated[BenchmarkSettings | None, option("`BenchmarkSettings`.", check=_settings(BenchmarkSettings))]
    accept: Annotated[Sequence[str], option(
        "Parts of the work in which an existing journal may differ: ``kernel``, ``target``, ``device``, ``versions``, "
        "``settings``.",
        default=(),
    )]
    machine: Annotated["Machine | None", option(
        "A machine with its own workload, compilers and devices, such as `atune.testing.FakeMachine`.",
    )]
    # fmt: on


class ListenOptions(TypedDict, total=False):
    """Who hears of a run."""

    # fmt: off
    on_event: Annotated["Callable[[Event], None] | None", option(
        "A plain function, called with each event in the event loop: keep it short. What it raises ends the run, whose "
        "journal can be resumed. It gets the events of a resumed run's earlier parts first.",
        check=_listener,
    )]
    log: Annotated["Log | None", option(
        "A logger of structlog or of `logging`, or False for none. Each event becomes an entry with its name and "
        "fields, its run and its workload: `atune.reporting.log.event_log`.",
        unset="the program's structlog, if it was configured",
    )]
    progress: Annotated[bool | None, option(
        "Show progress on stderr, or in the cell of a notebook. None does so on a terminal and in a notebook, and "
        "elsewhere shows a line after 5 s and then one a minute, unless `on_event` or `log` is given. A `Tuner` shows "
        "it for True alone.",
        unset="where somebody sees it, and elsewhere seldom",
    )]
    # fmt: on


class RunOptions(EngineOptions, ListenOptions, total=False):
    """Options of a new or resumed run."""


class TuneOptions(RunOptions, total=False):
    """Options of a new run."""

    # fmt: off
    journal: Annotated[str | os.PathLike[str] | None, option(
        "Write the journal to this file, or continue the one that is there. A journal of other work is refused, and "
        "folders are not made.",
        check=path, flag="--journal", metavar="FILE", unset="a new file in the cache folder",
        group="output",
    )]
    cached: Annotated[bool | None, option(
        "Return what the result cache has of the same work, and run nothing. None runs, and begins with the winner "
        "that it has; False ignores it.",
        unset="begin with its winner", flag="--cached", page="cache.md", group="search",
    )]
    on_miss: Annotated[Literal["tune", "error"], option(
        "With `cached`, where the result cache has no result of the work: tune, or fail (error). It then raises "
        "`CacheMiss`.",
        default="tune", must="must be 'tune' or 'error'", flag="--on-miss", metavar="tune|error", page="cache.md",
        group="search",
    )]
    warm: Annotated["Warm", option(
        "Start from the best configurations of an earlier journal of this kernel; `cache` takes those of the result "
        "cache. From Python it may be a result, too, or a list.",
        flag="--warm", metavar="J", repeat=True, page="search.md#warm-start", group="search",
    )]
    # fmt: on


class SetOptions(TuneOptions, total=False):
    """Options of a run of a set. Those of `tune` hold for each problem."""

    # fmt: off
    journal: Annotated[str | os.PathLike[str] | None, option(
        "A folder with a journal for each problem, which is made if it is missing. A set whose folder is there is "
        "continued: nothing is measured twice, and new problems are added.",
        check=path, unset="a new folder in the cache folder",
    )]
    # fmt: on


class CompileAllOptions(TypedDict, total=False):
    """Options of `compile_all`. All but one are those of `Workload` and `tune`."""

    # fmt: off
    arguments: Annotated[Mapping[str, Any] | None, described(WorkloadOptions, "arguments")]
    out_idx: Annotated[int | Sequence[int] | None, described(WorkloadOptions, "out_idx")]
    pass_configs: Annotated[Mapping[str, Any] | None, described(WorkloadOptions, "pass_configs")]
    target: Annotated[str, described(EngineOptions, "target")]
    compile: Annotated[CompileSettings | None, described(EngineOptions, "compile")]
    ignore_errors: Annotated[bool, option("Return None for each kernel that failed to compile.", default=False)]
    # fmt: on
