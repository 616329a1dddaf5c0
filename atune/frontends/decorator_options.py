"""Options of `@atune.autotune`: names, types, documentation, presets, and the checks when the decorator runs."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Required

import msgspec

from atune.engine.settings import EngineSettings
from atune.errors import SpaceError, UsageError, WorkloadError
from atune.frontends.run_options import ListenOptions, RunOptions, check_target
from atune.frontends.tuner import RunPlan
from atune.model.candidate import COMPILE_FLAGS, RESERVED, Config, check_reserved
from atune.model.device import device_names
from atune.model.options import Count, checked, complete, option, path, refuse_unknown
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.model.space import Constraint, Space
from atune.reporting.log import event_log
from atune.workers.result_cache import ResultCache
from atune.workload.packing import LazyCallback
from atune.workload.workload_options import SharedOptions, check_inputs

PathLike = str | os.PathLike[str]
OnMiss = Literal["tune", "pick", "default", "error"]
ON_MISS = "must be 'tune', 'pick', 'default' or 'error'"


def _cache(where: str, value: Any) -> Any:
    if value is None:
        raise UsageError("cache must be True for the user's cache, False for no cache, or a folder, got None")
    if not isinstance(value, bool):
        path(where, value)
    return value


class AutotuneOptions(SharedOptions, ListenOptions, total=False):
    """Options of `autotune`, including the options of a workload and of listeners."""

    # fmt: off
    space: Required[Annotated[Any, option(
        "A dict of axes, a list of configurations, a `Space`, or a function that returns a dict, list or `Space`. The "
        "function gets the call's arguments, and runs for each new form of call.",
    )]]
    where: Annotated[Callable[..., Any] | Sequence[Callable[..., Any]], option(
        "Constraints on axes, as for `Space`.", default=(),
    )]
    key: Annotated[Any, option(
        "The key of a tuning: names of arguments, or a function of the call's arguments. By default, the key has every "
        "argument that is not tuned. The dimensions of an eager kernel also count as arguments.",
        unset="all arguments",
    )]
    do_not_specialize: Annotated[str | Sequence[str], option(
        "Arguments to leave out of the key. If the space sets one of these arguments, the call's value is ignored.",
        default=(),
    )]
    hints: Annotated[Mapping[str, Any] | None, option(
        "Values that all configurations share, for arguments of the kernel or other names that an axis may have (such "
        "as ``occupancy``). A hint must not be an axis. If a value is a function, it gets the target (``sm_90a``).",
        must="must be a dict of the kernel's arguments, such as {'threads': 128}",
    )]
    tuning: Annotated[str | Mapping[str, Any] | None, option(
        "The name of a preset (``quick``, ``default``, ``thorough``, ``pick``), or a dict of options, which may have a "
        "``preset``.",
        unset="the preset `default`",
    )]
    inputs: Annotated[Any, option(
        "The inputs, as for `Workload`, or ``'call'`` to tune on copies of the call's tensors. By default, inputs "
        "are random. Tuning never changes the tensors of a call.",
        check=lambda where, it: it if isinstance(it, str) and it == "call" else check_inputs(where, it),
    )]
    tune_on: Annotated[Callable[..., Any] | None, option(
        "A function that gets the call's arguments and returns a dict of arguments to tune with, such as scratch "
        "tensors or a smaller batch. After the tuning, the kernel runs with the call's own arguments.",
        must="must be a function of the call's arguments",
    )]
    symbols: Annotated[Mapping[str, Count] | None, option(
        "Sizes to tune for, by the names of symbolic dimensions that no tensor of the call has.",
        must="must be a dict of sizes by name, such as {'n': 1024}",
    )]
    target: Annotated[str | None, option("As for `tune`.", check=check_target, unset="the target of `@tilelang.jit`")]
    devices: Annotated[str | Sequence[str | int], option("As for `tune`.", default="all")]
    cache: Annotated[bool | PathLike, option(
        "The result cache: True for the user's cache, False for no cache, or a folder.", default=True, check=_cache,
    )]
    on_miss: Annotated[OnMiss, option(
        "What a call does if no result is known. ``tune`` tunes, ``pick`` lets the prior choose without measuring, "
        "``default`` uses the default configuration, and ``error`` raises `CacheMiss`.",
        default="tune", must=ON_MISS,
    )]
    shipped: Annotated[PathLike | Sequence[PathLike], option(
        "Files from `atune cache export`, such as ``Path(__file__).with_name('tuned.json')``. The files are read after "
        "the result cache, and before tuning.", default=(),
    )]
    # fmt: on


_LAZY = ("reference", "check", "setup")
"""Options whose functions are unpacked only in the process of a device."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a kernel that tunes itself."""

    space: Any
    where: tuple[Callable[..., Any], ...] = ()
    names: frozenset[str] = frozenset()
    """Names of kernel arguments that occur in the options, except names that depend on a call."""
    key: tuple[str, ...] | Callable[..., Any] | None = None
    """Names of the arguments in a tuning's key, or a function of the call's arguments. None: all arguments."""
    leave_out: frozenset[str] = frozenset()
    """Names of arguments to leave out of the key. A tunable argument is tuned even if a call passes it."""
    hints: Mapping[str, Any] = {}
    symbols: Mapping[str, int] = {}
    inputs: Any = None
    tune_on: Callable[..., Any] | None = None
    workload: Mapping[str, Any]
    """Options of `Workload`."""
    plan: RunPlan
    """The plan of each tuning. Each call sets the target and the compiler flags of its own copy."""
    jit: Mapping[str, Any] | None = None
    """Arguments of `jit_kernel`. None: the arguments of `@tilelang.jit`."""
    target: str | None
    """None: the target of `@tilelang.jit`."""
    cache: ResultCache | None
    on_miss: OnMiss = "tune"
    shipped: tuple[str, ...] = ()

    @property
    def like_tilelang(self) -> bool:
        """Whether the options come from the drop-in for tilelang's tuner, and mean the same as in tilelang."""
        return self.jit is not None


def checked_options(given: Mapping[str, Any]) -> Options:
    """Check the given `AutotuneOptions` before the first call, and return them. Raises `UsageError`."""
    options = complete("autotune", given, AutotuneOptions, WorkloadError)
    cache, key, hints, tuning = options["cache"], options["key"], dict(options["hints"] or {}), options["tuning"]
    preset = tuning.get("preset") if isinstance(tuning, Mapping) else tuning
    if key is not None and options["do_not_specialize"]:
        raise UsageError("give either key (arguments to use) or do_not_specialize (arguments to leave out)")
    check_hints({name: value for name, value in hints.items() if not inspect.isfunction(value)})
    event_log(False if options["log"] is None else options["log"])
    space, where = options["space"], options["where"]
    constraints: tuple[Constraint, ...] = tuple(where) if isinstance(where, (list, tuple)) else (where,)
    if space is None:
        raise SpaceError("autotune: give a space, such as @atune.autotune(space={'block_M': [64, 128]})")
    if wrong := [constraint for constraint in constraints if not callable(constraint)]:
        raise SpaceError(f"where: a constraint must be callable, got {wrong[0]!r}")
    if not callable(space):
        space = as_space(space, constraints)
    names = {name for _, each in space.names() for name in each} if isinstance(space, Space) else set()
    refuse_clash(names, hints)
    return Options(
        space=space,
        where=constraints,
        names=frozenset(names | hints.keys() | (options["default"] or {}).keys()) - RESERVED,
        key=key if key is None or callable(key) else names_in("key", key),
        leave_out=frozenset(names_in("do_not_specialize", options["do_not_specialize"])),
        hints=hints,
        symbols=dict(options["symbols"] or {}),
        inputs=lazy_callback(options["inputs"]),
        tune_on=options["tune_on"],
        workload={n: lazy_callback(options[n]) if n in _LAZY else options[n] for n in SharedOptions.__annotations__},
        plan=RunPlan(
            settings=EngineSettings(**tuning_options(tuning)),
            devices=device_names(options["devices"]),
            **{name: options[name] for name in ListenOptions.__annotations__},
        ),
        target=options["target"],
        cache=None if cache is False else ResultCache() if cache is True else ResultCache(cache),
        on_miss="pick" if preset == PICK and options["on_miss"] == "tune" else options["on_miss"],
        shipped=_paths("shipped", options["shipped"]),
    )


def lazy_callback(callback: Any) -> Any:
    """Wrap a function so that only a device's process unpacks it. Return any other value unchanged."""
    return LazyCallback(callback) if callable(callback) else callback


def check_hints(hints: Mapping[str, Any]) -> None:
    """Raise `SpaceError` for wrong `pass_configs` or `compile_flags`. A string is also valid as `compile_flags`."""
    for name in sorted(hints.keys() & RESERVED):
        if not (name == COMPILE_FLAGS and isinstance(hints[name], str)):
            check_reserved(name, hints[name], "hints")


def as_space(space: Any, where: tuple[Constraint, ...]) -> Space:
    """Return axes or a list of configurations as a `Space`. A `Space` with further constraints raises `SpaceError`."""
    if isinstance(space, Space):
        if where:
            raise SpaceError("where: give the constraints to the Space instead")
        return space
    return Space(space if isinstance(space, Mapping) else listed("space", space), where=where)


def refuse_clash(names: Iterable[str], hints: Mapping[str, Any]) -> None:
    """Raise `SpaceError` if a hint is also in `names`, which are the names that the space sets."""
    if clash := sorted(hints.keys() & set(names)):
        raise SpaceError(f"{clash[0]!r} is both a hint and an axis of the space: remove the hint or the axis")


def listed(option: str, configs: Any) -> list[Config]:
    """Return `configs` as a list of one or more dicts. For other values, raises `SpaceError`, which names `option`."""
    if isinstance(configs, (str, Mapping)) or not isinstance(configs, Iterable):
        axes = "axes, " if option == "space" else ""
        wanted = f"{axes}a list of configurations or a function that returns them"
        raise SpaceError(f"{option}: give {wanted}, got {configs!r}")
    chosen = [*configs]
    if not chosen:
        raise SpaceError(f"No configurations to tune: {option} is empty")
    for config in chosen:
        if not isinstance(config, Mapping):
            raise SpaceError(f"{option}: give dicts, such as [{{'block': 32}}, {{'block': 64}}], got {configs!r}")
    return chosen


def names_in(option: str, value: Any) -> tuple[str, ...]:
    """Return `value`, one or several names, as a tuple. For other values, raises `UsageError`, which names `option`."""
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option}: give names of arguments, such as ['M', 'N'], got {value!r}")
    return names


def _paths(name: str, given: Any) -> tuple[str, ...]:
    """Return `given`, one or several paths, as strings. Other values raise `UsageError`, which names the option."""
    single = isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable)
    return tuple(os.fspath(path(name, each)) for each in ((given,) if single else given))


PICK = "pick"
"""The preset with which calls measure nothing. An explicit tuning with this preset uses the default options."""
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"budget": "auto", "n_warmup": 1, "n_repeat": 5, "n_final": 3, "n_final_rounds": 5},
    "thorough": {"n_repeat": 50, "n_final": 10, "n_final_rounds": 40, "adaptive": False},
    PICK: {},
}
"""For each preset, the options that differ from the defaults of a tuning."""

_RUN = ("budget", "strategy", "prior", "seed", "pipeline")
_COMPILE = set(CompileSettings.__struct_fields__)
_BENCHMARK = set(BenchmarkSettings.__struct_fields__)

TUNING = sorted({*_COMPILE, *_BENCHMARK, *_RUN})
"""The options that `tuning` takes."""


def tuning_options(tuning: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of `atune.tune` for a preset's name, or for a mapping of options (``preset`` is optional).

    Valid options are all fields of `BenchmarkSettings` and `CompileSettings`, and ``budget``, ``strategy``, ``prior``,
    ``seed`` and ``pipeline``. Raises `UsageError` for an unknown option or a wrong value.
    """
    if tuning is not None and not isinstance(tuning, (str, Mapping)):
        raise UsageError(f"tuning: give a preset's name or a dict of options, such as {{'budget': 40}}, got {tuning!r}")
    given: dict[str, Any] = {"preset": tuning} if isinstance(tuning, str) else dict(tuning or {})
    preset = given.pop("preset", "default")
    if preset not in PRESETS:
        raise UsageError(f"tuning: unknown preset {preset!r}; the presets are {', '.join(PRESETS)}")
    refuse_unknown("tuning", sorted(map(str, given)), ["preset", *TUNING])
    chosen = {**PRESETS[preset], **given}
    benchmark = {name: value for name, value in chosen.items() if name in _BENCHMARK}
    compile = {name: value for name, value in chosen.items() if name in _COMPILE}
    run = checked("tuning", {name: chosen[name] for name in _RUN if name in chosen}, RunOptions)
    if "budget" in run:
        run["budget"] = Budget.parse(run["budget"])
    return {"benchmark": BenchmarkSettings(**benchmark), "compile": CompileSettings(**compile), **run}
