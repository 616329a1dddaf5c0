"""Options of `@atune.autotune`: names, types and documentation, and the checks when the decorator is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast

import msgspec

from atune.api.cached_tune import Concurrent
from atune.api.options import check_listener, check_settings
from atune.decorator.presets import ByArch, tuning_options
from atune.errors import SpaceError, UsageError
from atune.journal.events import Event
from atune.model.candidate import COMPILE_FLAGS, RESERVED, check_reserved
from atune.model.checks import path
from atune.model.device import device_names, parse_target
from atune.model.space import Constraint, Space
from atune.reporting.log import EventLog, event_log
from atune.storage.result_cache import ResultCache
from atune.workload.sealed import Sealed
from atune.workload.values import check_values

if TYPE_CHECKING:
    from atune.decorator.call import Arguments

PathLike = str | os.PathLike[str]
OnMiss = Literal["tune", "default", "error"]


class AutotuneOptions(TypedDict, total=False):
    """
    Parameters
    ----------
    space
        Axes as a dict, a list of configurations, a `Space`, or a function that returns one of these. The function
        gets the caller's arguments, and is called for each new form of call.
    where
        Constraints on axes, as for `Space`.
    key
        The key of a tuning: names of arguments, or a function of the call's arguments. By default, every argument
        that is not tuned. An eager kernel's dimensions count as arguments.
    do_not_specialize
        Names of arguments that do not count in the key.
    hints
        Arguments of the kernel, or ``pass_configs`` and ``compile_flags``, with the same value for every
        configuration. A value may be a `ByArch`. A hint must not be an axis too.
    tuning
        The name of a preset (``quick``, ``default``, ``thorough``), or a dict of options, which may name a ``preset``.
    inputs
        As for `Workload`. ``"call"`` tunes on copies of the call's tensors. By default, inputs are drawn. Tuning never
        touches a call's own tensors.
    reference, check
        As for `Workload`.
    setup
        A function that is called with the new inputs and may change them in place.
    tune_on
        A function of the call's arguments that returns other arguments for tuning, by name, such as scratch tensors
        or a smaller batch. The kernel is launched with the call's own arguments.
    symbols
        Sizes of symbolic dimensions to tune for, by name, if no tensor of the call tells them.
    out_idx, rtol, atol, max_mismatched_ratio, supply, restore, zero, flops, bytes, default, name
        As for `Workload`. `@tilelang.jit`'s `out_idx` and outputs made by `T.empty` need not be repeated.
    target, devices, progress, on_event, log
        As for `tune`. The default target is that of `@tilelang.jit`.
    cache
        The result cache: True for the user's, False for none, or a folder.
    concurrent
        While another process tunes the same work: ``wait`` for its result, or ``tune`` at the same time.
    on_miss
        If no result is known: ``tune``, use the ``default`` configuration, or raise `CacheMiss` (``error``).
    shipped
        Files that `atune cache export` wrote. They are read after the result cache and before tuning.
    """

    space: Required[Any]
    where: Callable[..., Any] | Sequence[Callable[..., Any]]
    key: Any
    do_not_specialize: str | Sequence[str]
    hints: Mapping[str, Any] | None
    tuning: str | Mapping[str, Any] | None
    inputs: Any
    reference: Callable[..., Any] | None
    setup: Callable[..., Any] | None
    check: Callable[..., Any] | None
    tune_on: Callable[..., Any] | None
    symbols: Mapping[str, int] | None
    out_idx: int | Sequence[int] | None
    rtol: float | None
    atol: float | None
    max_mismatched_ratio: float
    supply: Any
    restore: Sequence[int]
    zero: Sequence[int]
    flops: float | None
    bytes: float | None
    default: Mapping[str, Any] | None
    target: str | None
    devices: str | Sequence[str | int]
    cache: bool | PathLike
    concurrent: Concurrent
    on_miss: OnMiss
    shipped: PathLike | Sequence[PathLike]
    progress: bool
    on_event: Callable[[Event], None] | None
    log: EventLog | None
    name: str | None


_OF_WORKLOAD = (
    "out_idx", "rtol", "atol", "max_mismatched_ratio", "supply", "restore", "zero", "flops", "bytes", "default", "name",
)  # fmt: skip
_SEALED = ("reference", "check", "setup")
"""Functions of the user's for a workload, which only a device's process unpacks."""


class KeyRule:
    """The arguments that make a tuning's key.

    `key`: names of arguments, a function of the caller's arguments, or None for all of them. `leave_out`: names that
    do not count.
    """

    def __init__(self, key: Any, leave_out: Any) -> None:
        if key is not None and leave_out:
            raise UsageError("give key or do_not_specialize, not both: either names what counts, or what does not")
        self.names = None if key is None or callable(key) else _names("key", key)
        self.function = key if callable(key) else None
        self.leave_out = frozenset(_names("do_not_specialize", leave_out))

    def apply(self, problem: Mapping[str, Any], arguments: Arguments, encode: Callable[[Any, str], Any]) -> Any:
        """Return the key, as data, of a call with this `problem`. Raises `UsageError` for an unknown name."""
        if self.function is not None:
            return {"key": encode(self.function(*arguments.args, **arguments.kwargs), "what key returned")}
        if missing := [n for n in self.names or () if n not in problem]:
            raise UsageError(f"key: there is no argument {missing[0]!r}; there is {', '.join(problem)}")
        if self.names is not None:
            return {name: problem[name] for name in self.names}
        if missing := sorted(self.leave_out - problem.keys()):
            raise UsageError(f"do_not_specialize: there is no argument {missing[0]!r}; there is {', '.join(problem)}")
        return {name: value for name, value in problem.items() if name not in self.leave_out}


def _names(option: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option}: give names of arguments, such as ['M', 'N'], got {value!r}")
    return names


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a kernel that tunes itself."""

    space: Any
    where: tuple[Callable[..., Any], ...] = ()
    names: frozenset[str] = frozenset()
    """Arguments of the kernel that the options name, as far as they are known before a call."""
    rule: KeyRule = KeyRule(None, ())
    hints: Mapping[str, Any] = {}
    symbols: Mapping[str, int] = {}
    inputs: Any = None
    tune_on: Callable[..., Any] | None = None
    workload: Mapping[str, Any]
    """Options of `Workload`."""
    run: Mapping[str, Any]
    """Options of `tune`, with settings."""
    jit: Mapping[str, Any] | None = None
    """Arguments of `jit_kernel`. None: those of `@tilelang.jit`."""
    target: str | None
    devices: tuple[str, ...]
    cache: ResultCache | None
    concurrent: Concurrent = "wait"
    on_miss: OnMiss = "tune"
    shipped: tuple[str, ...] = ()


def checked(given: Mapping[str, Any]) -> Options:
    """Return the given `AutotuneOptions`, checked, so that a first call fails for none. Raises `UsageError`."""
    options = dict(given)
    inputs, cache = options.get("inputs"), options.get("cache", True)
    check_values("autotune", {**options, "inputs": None if isinstance(inputs, str) and inputs == "call" else inputs})
    check_listener(options.get("on_event"))
    check_settings(None, None, progress=options.get("progress", False))
    if cache is None:
        raise UsageError("cache must be True for the user's, False for none, or a folder, got None")
    if not isinstance(cache, bool):
        path("cache", cache)
    hints = dict(options.get("hints") or {})
    _check_hints(hints)
    if options.get("log") is not None:
        event_log(options["log"])
    if options.setdefault("concurrent", "wait") not in ("wait", "tune"):
        raise UsageError(f"concurrent: give 'wait' or 'tune', got {options['concurrent']!r}")
    check_on_miss(options.setdefault("on_miss", "tune"))
    if options.get("target") is not None:
        parse_target(options["target"])
    space, constraints, names = _checked_space(options.get("space"), options.get("where", ()), hints)
    return Options(
        space=space,
        where=constraints,
        names=(names | hints.keys() | (options.get("default") or {}).keys()) - RESERVED,
        rule=KeyRule(options.get("key"), options.get("do_not_specialize", ())),
        hints=hints,
        symbols=dict(options.get("symbols") or {}),
        inputs=sealed(inputs),
        tune_on=options.get("tune_on"),
        workload={
            **{name: sealed(options[name]) for name in _SEALED if name in options},
            **{name: options[name] for name in _OF_WORKLOAD if name in options},
        },
        run={
            **tuning_options(options.get("tuning")),
            **{name: options[name] for name in ("progress", "on_event", "log") if name in options},
        },
        target=options.get("target"),
        devices=device_names(options.get("devices", "all")),
        cache=None if cache is False else ResultCache() if cache is True else ResultCache(cache),
        concurrent=options["concurrent"],
        on_miss=options["on_miss"],
        shipped=_paths("shipped", options.get("shipped", ())),
    )


def sealed(callback: Any) -> Any:
    """Return a function so that only a device's process unpacks it; other things as they are."""
    return Sealed(callback) if callable(callback) else callback


def _check_hints(hints: Mapping[str, Any]) -> None:
    """Raise `SpaceError` for a wrong `pass_configs` or `compile_flags`. Flags may be a text, too."""
    for name in sorted(hints.keys() & RESERVED):
        for value in hints[name].every if isinstance(hints[name], ByArch) else (hints[name],):
            if not (name == COMPILE_FLAGS and isinstance(value, str)):
                check_reserved(name, value, "hints")


def check_on_miss(on_miss: object) -> None:
    """Raise `UsageError` unless `on_miss` says what to do where nothing is known."""
    if on_miss not in ("tune", "default", "error"):
        raise UsageError(f"on_miss: give 'tune', 'default' or 'error', got {on_miss!r}")


def _checked_space(
    space: Any, where: Any, hints: Mapping[str, Any]
) -> tuple[Any, tuple[Constraint, ...], frozenset[str]]:
    """Return the space: a `Space`, a list of configurations, or a function; the constraints beside it; and its names.

    A `Space` has its constraints itself. The names are those that are known before a call. Raises `SpaceError` for what
    is no space, and for a hint that the space has too.
    """
    if space is None:
        raise SpaceError("autotune: give a space, such as @atune.autotune(space={'block_M': [64, 128]})")
    constraints = tuple(where) if isinstance(where, Sequence) and not isinstance(where, (str, bytes)) else (where,)
    for constraint in constraints:
        if not callable(constraint):
            raise SpaceError(f"where: a constraint must be callable, got {constraint!r}")
    if isinstance(space, Space) and constraints:
        raise SpaceError("where: give the constraints to the Space")
    if isinstance(space, Mapping):
        space, constraints = Space(space, where=constraints), ()
    known: Iterable[Iterable[str]] = ()
    if isinstance(space, Space):
        known = [names for _, names in space.names()]
    elif not callable(space):
        known = space = listed(space)
    names = frozenset(name for each in known for name in each)
    refuse_clash(names, hints)
    return space, constraints, names


def refuse_clash(names: Iterable[str], hints: Mapping[str, Any]) -> None:
    """Raise `SpaceError` for a hint that is one of the space's `names` too."""
    if clash := sorted(hints.keys() & set(names)):
        raise SpaceError(f"{clash[0]!r} is a hint and an axis of the space; give it in one place")


def listed(space: Any) -> list[Any]:
    """Return the configurations of `space` as a list. Raises `SpaceError` if there is none, or one is no dict."""
    if isinstance(space, str) or not isinstance(space, Iterable):
        raise SpaceError(f"space: give axes, a list of configurations or a function that returns them, got {space!r}")
    found = [*space]
    for config in found or [None]:
        if not isinstance(config, Mapping):
            raise SpaceError(f"space: give dicts, such as [{{'block': 32}}, {{'block': 64}}], got {space!r}")
    return found


def _paths(name: str, given: object) -> tuple[str, ...]:
    """Return one path, or several, as texts. Raises `UsageError`, naming the option, for anything else."""
    one = isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable)
    several: list[Any] = [given] if one else list(cast(Iterable[Any], given))
    for each in several:
        if each is None:
            raise UsageError(f"{name} must be a path, or a list of paths, got None")
        path(name, each)
    return tuple(os.fspath(each) for each in several)
