"""The options of `tune`, `run`, `resume`, `run_resume` and `Tuner`, and of the command `atune tune`."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
    from atune.frontends.problems import Given, Problems
    from atune.frontends.warm_start import Warm
    from atune.journal.events import Event
    from atune.reporting.log import Log


StrategyName = Literal["auto", "exhaustive", "random", "prior", "bayesian"]
TargetName = Literal["auto", "cuda", "c"]
"""Names that an editor can complete. Any other string is checked at run time."""


def check_target(where: str, value: Any) -> Any:
    """Return `value`, or ``auto`` if `value` is None. Raises `TargetError` if `value` is not a target."""
    parse_target(value)
    return "auto" if value is None else value


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
        raise UsageError(f"{where} must be a function that takes an event, got {on_event!r}")
    called = (on_event, inspect.getattr_static(type(on_event), "__call__", None))
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in called):
        raise UsageError(
            f"{where} must be a plain function, because atune does not await it; in async code, read the events: "
            "`async with Tuner(...) as tuner: async for event in tuner.events(): ...`"
        )
    return on_event


LATEST = "latest"
"""The name of the newest run in commands."""


def journal_at(given: str | os.PathLike[str], *, folder: bool = False) -> Path:
    """Return the path of a run's journal, or of a set's `folder`. Raises `UsageError` for a path of something else."""
    text = os.fspath(given)
    if text == LATEST and not os.path.exists(text):
        raise UsageError(f"journal: {text!r} means the newest run in commands, so a new journal needs another name")
    if not text:
        raise UsageError(f"journal: the path is empty: give a {'folder' if folder else 'file'}")
    if not folder and os.path.basename(text) in ("", os.curdir, os.pardir):
        raise UsageError(f"journal: {text!r} is a folder: give a file in it")
    return Path(text)


class EngineOptions(TypedDict, total=False):
    """Options that decide what a run does, and on which devices."""

    # fmt: off
    target: Annotated[TargetName | str, option(
        "Target: auto, cuda, an arch such as sm_90a, or c (CPU). ``auto`` is cuda if there is a GPU, and otherwise c.",
        default="auto", check=check_target, flag="--target", group="where",
    )]
    devices: Annotated[str | Sequence[str | int], option(
        "Devices to measure on: all, cpu, or GPU numbers.",
        default="all", flag="--devices", metavar="all|cpu|0,1", repeat=True, group="where",
    )]
    cluster: Annotated[Annotated[str, Meta(pattern=r"\S")] | None, option(
        "Run on the nodes of a Ray cluster: give the address of the cluster, or auto to let Ray find it. "
        "Needs ``ray``. `devices` and `CompileSettings.workers` then apply to each node.",
        must="must be auto, ray://HOST:10001 or HOST:6379", flag="--cluster", metavar="ADDRESS",
        unset="this machine alone", page="cluster.md",
        group="where",
    )]
    budget: Annotated[int | str | Budget | None, option(
        "Stop after N candidates, a share of the space, or a time (90s, 2m, 1h). If you give several limits (40,90s), "
        "the run stops at the first limit that it reaches. ``auto`` stops if none of the last eight candidates was 2 % "
        "faster than the best before. None tries the whole space. All parts of a resumed run share the budget.",
        check=lambda where, value: Budget.parse(value),
        flag="--budget", metavar="N|10%|90s|auto", unset="all", page="search.md#budgets", group="search",
    )]
    strategy: Annotated["StrategyName | str | Strategy | None", option(
        f"How to choose candidates: {', '.join(STRATEGIES)}. You can also give an object with a name, ``ask()`` and "
        "``tell(index, latency_ms, reason)``. A resumed run keeps the strategy of its journal.",
        check=_strategy, flag="--strategy", metavar="NAME", unset="auto, or the journal's", page="search.md",
        group="search",
    )]
    prior: Annotated[bool, option(
        "Begin a search with the candidates that the prior estimates to be fastest. The prior is used on CUDA if the "
        "run has a budget and more than 64 candidates. Your own strategy may rank candidates differently.",
        default=True, page="search.md#the-prior",
    )]
    seed: Annotated[Natural, option(
        "Seed of the strategy. The seed determines all random draws.",
        default=0, flag="--seed", metavar="N", group="search",
    )]
    pipeline: Annotated[bool, option(
        "Measure candidates while other candidates compile. False compiles all candidates first, for comparison.",
        default=True, flag="--pipeline", group="compiling",
    )]
    compile: Annotated[CompileSettings | None, option("`CompileSettings`.", check=_settings(CompileSettings))]
    benchmark: Annotated[BenchmarkSettings | None, option("`BenchmarkSettings`.", check=_settings(BenchmarkSettings))]
    accept: Annotated[Sequence[str], option(
        "Continue an existing journal even if these parts of the work differ: ``kernel``, ``target``, ``device``, "
        "``versions``, ``settings``.",
        default=(),
    )]
    machine: Annotated["Machine | None", option(
        "A machine with its own workload, compilers and devices, such as `atune.testing.FakeMachine`.",
    )]
    # fmt: on


class ListenOptions(TypedDict, total=False):
    """Options for following a run: events, log and progress."""

    # fmt: off
    on_event: Annotated["Callable[[Event], None] | None", option(
        "A plain function that the event loop calls with each event, so the function must be quick. If the function "
        "raises, the run ends, and you can resume the journal. A resumed run first sends the events of earlier parts.",
        check=_listener,
    )]
    log: Annotated["Log | None", option(
        "A logger of structlog or of `logging`, or False to log nothing. Each event becomes a log entry with its "
        "name and fields, the run and the workload; see `atune.reporting.log.event_log`.",
        unset="structlog, if the program configured it",
    )]
    progress: Annotated[bool | None, option(
        "Show progress on stderr, or in a notebook's cell. None shows progress on a terminal and in a notebook. "
        "Elsewhere, None prints a line after 5 s and then every minute, unless `on_event` or `log` is given. A "
        "`Tuner` shows progress only if `progress` is True.",
        unset="on, but only a line a minute if nobody watches",
    )]
    # fmt: on


class RunOptions(EngineOptions, ListenOptions, total=False):
    """Options of a new or resumed run."""


class TuneOptions(RunOptions, total=False):
    """Options of a new run."""

    # fmt: off
    journal: Annotated[str | os.PathLike[str] | None, option(
        "Write the journal to this file, or continue an existing journal. A journal of different work is refused. The "
        "file's folder must exist.",
        check=path, flag="--journal", metavar="FILE", unset="a new file in the cache folder",
        group="output",
    )]
    cached: Annotated[bool | None, option(
        "If the cache has a result of the same work, return this result without running. None measures, but starts "
        "with the cached winner. False ignores the cache.",
        unset="measure, starting with the cached winner", flag="--cached", page="cache.md", group="search",
    )]
    on_miss: Annotated[Literal["tune", "error"], option(
        "Whether to tune or to raise an error if the option `cached` finds no result. ``error`` raises `CacheMiss`.",
        default="tune", must="must be 'tune' or 'error'", flag="--on-miss", metavar="tune|error", page="cache.md",
        group="search",
    )]
    warm: Annotated["Warm", option(
        "Start with the best configurations from an earlier journal of this kernel; the word cache stands for the "
        "result cache. In Python, `warm` may also be a result or a list.",
        flag="--warm", metavar="J", repeat=True, page="search.md#warm-start", group="search",
    )]
    # fmt: on


class SetOptions(TuneOptions, total=False):
    """Options of `tune_set`. An option of `tune` applies to each problem of the set."""

    # fmt: off
    journal: Annotated[str | os.PathLike[str] | None, option(
        "A folder for the journals, one journal for each problem. A missing folder is created. If the folder holds a "
        "set, the set is continued: nothing is measured twice, and new problems are added.",
        check=path, unset="a new folder in the cache folder",
    )]
    # fmt: on


class MeasureOptions(TypedDict, total=False):
    """Options of `measure` and `measure_many`."""

    # fmt: off
    problems: Annotated["Problems | Given | str | os.PathLike[str] | None", option(
        "The problems to measure: `Problems`, a list of dictionaries, or a file.",
        flag="--problems", metavar="FILE", unset="the task's own",
    )]
    allow: Annotated[Sequence[str], option(
        "Names of external functions that candidates may call. ``source`` allows source text in a kernel.",
        default=(), flag="--allow", metavar="NAME", repeat=True, unset="none",
    )]
    target: Annotated[str, described(EngineOptions, "target")]
    devices: Annotated[str | Sequence[str | int], described(EngineOptions, "devices")]
    compile: Annotated[CompileSettings | None, described(EngineOptions, "compile")]
    benchmark: Annotated[BenchmarkSettings | None, described(EngineOptions, "benchmark")]
    journal: Annotated[str | os.PathLike[str] | None, option(
        "A folder for the journals.", check=path, flag="--journal", metavar="DIR", unset="in the cache folder",
    )]
    # fmt: on


class CompileAllOptions(TypedDict, total=False):
    """Options of `compile_all`. All options except `ignore_errors` are also options of `Workload` or `tune`."""

    # fmt: off
    arguments: Annotated[Mapping[str, Any] | None, described(WorkloadOptions, "arguments")]
    out_idx: Annotated[int | Sequence[int] | None, described(WorkloadOptions, "out_idx")]
    pass_configs: Annotated[Mapping[str, Any] | None, described(WorkloadOptions, "pass_configs")]
    target: Annotated[str, described(EngineOptions, "target")]
    compile: Annotated[CompileSettings | None, described(EngineOptions, "compile")]
    ignore_errors: Annotated[bool, option("Return None for each kernel that failed to compile.", default=False)]
    # fmt: on
