"""The decorator `autotune`, and the functions `best_config` and `clear_cache` for decorated kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, overload

from atune.api.cached_tune import Concurrent
from atune.decorator.ahead import warm_for
from atune.decorator.arguments import KeyRule
from atune.decorator.autotuned import Autotuned, all_autotuned
from atune.decorator.call import OnMiss, Options
from atune.decorator.checks import check_options, checked_space, paths
from atune.decorator.files import files_in
from atune.decorator.options import AutotuneOptions, PathLike
from atune.decorator.order import refuse_jit_above
from atune.decorator.presets import TUNING, tuning_options
from atune.errors import UsageError
from atune.journal.events import Event
from atune.model.candidate import RESERVED, Config
from atune.model.device import device_names
from atune.model.former_names import AUTOTUNE
from atune.model.options import named_options
from atune.reporting.log import EventLog
from atune.storage.result_cache import ResultCache
from atune.workload.sealed import Sealed

_ELSEWHERE = {name: f'tuning={{"{name}": …}}' for name in TUNING}
"""How to write options that belong in `tuning`, by name."""


@overload
def autotune(kernel: None = None, **options: Unpack[AutotuneOptions]) -> Callable[[Callable[..., Any]], Autotuned]: ...


@overload
def autotune(kernel: Callable[..., Any], **options: Unpack[AutotuneOptions]) -> Autotuned: ...


@named_options("autotune", _ELSEWHERE, AUTOTUNE)
def autotune(
    kernel: Any = None,
    *,
    space: Any = None,
    where: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    key: Any = None,
    do_not_specialize: str | Sequence[str] = (),
    hints: Mapping[str, Any] | None = None,
    tuning: str | Mapping[str, Any] | None = None,
    inputs: Any = None,
    reference: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
    check: Callable[..., Any] | None = None,
    tune_on: Callable[..., Any] | None = None,
    symbols: Mapping[str, int] | None = None,
    out_idx: int | Sequence[int] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_mismatched_ratio: float = 0.0,
    supply: Any = None,
    restore: Sequence[int] = (),
    zero: Sequence[int] = (),
    flops: float | None = None,
    bytes: float | None = None,
    default: Mapping[str, Any] | None = None,
    target: str | None = None,
    devices: str | Sequence[str | int] = "all",
    cache: bool | PathLike = True,
    concurrent: Concurrent = "wait",
    on_miss: OnMiss = "tune",
    shipped: PathLike | Sequence[PathLike] = (),
    journal: PathLike | None = None,
    report: PathLike | None = None,
    progress: bool = False,
    on_event: Callable[[Event], None] | None = None,
    log: EventLog | None = None,
    name: str | None = None,
) -> Any:
    """Tune a kernel when it is called. Put this above `@tilelang.jit`.

    The first call with a new key tunes, and later calls look up the kernel. Returns an `Autotuned`, or a decorator. If
    a call may tune and the result cache has no result of the kernel, `warm` is called once per program.

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
    journal, report
        Folders for the journal and for the report's page of each tuning. A file has the kernel's name and the
        beginning of the key, as ``atune cache ls`` shows it. Results that the result cache had are written from there.

    Raises `UsageError` and its branches for arguments that cannot work. For an unknown option it is a TypeError too.
    """
    check_options({
        "inputs": inputs, "reference": reference, "check": check, "setup": setup, "tune_on": tune_on, "hints": hints,
        "symbols": symbols, "out_idx": out_idx, "restore": restore, "zero": zero, "rtol": rtol, "atol": atol,
        "max_mismatched_ratio": max_mismatched_ratio, "supply": supply, "flops": flops, "bytes": bytes,
        "default": default, "name": name, "target": target, "cache": cache, "concurrent": concurrent,
        "on_miss": on_miss, "journal": journal, "report": report, "progress": progress, "on_event": on_event,
        "log": log,
    })  # fmt: skip
    hints = dict(hints or {})
    space, constraints, names = checked_space(space, where, hints)
    options = Options(
        space=space,
        where=constraints,
        rule=KeyRule(key, do_not_specialize),
        hints=hints,
        symbols=dict(symbols or {}),
        inputs=_sealed(inputs),
        tune_on=tune_on,
        workload={
            "reference": _sealed(reference),
            "check": _sealed(check),
            "setup": _sealed(setup),
            "out_idx": out_idx,
            "rtol": rtol,
            "atol": atol,
            "max_mismatched_ratio": max_mismatched_ratio,
            "supply": supply,
            "restore": tuple(restore or ()),
            "zero": tuple(zero or ()),
            "flops": flops,
            "bytes": bytes,
            "default": default,
            "name": name,
        },
        run={**tuning_options(tuning), "progress": progress, "on_event": on_event, "log": log},
        target=target,
        devices=device_names(devices),
        cache=None if cache is False else ResultCache() if cache is True else ResultCache(cache),
        concurrent=concurrent,
        on_miss=on_miss,
        shipped=paths("shipped", shipped),
        files=files_in(journal, report),
    )

    def decorate(kernel: Any) -> Autotuned:
        if not callable(kernel) or isinstance(kernel, Autotuned):
            raise UsageError(
                f"autotune: put it above @tilelang.jit, or above a function that returns a PrimFunc; got {kernel!r}"
            )
        refuse_jit_above(kernel)
        autotuned = Autotuned(kernel, options)
        autotuned.check_names((names | hints.keys() | (default or {}).keys()) - RESERVED)
        warm_for(autotuned)
        return autotuned

    return decorate if kernel is None else decorate(kernel)


def best_config(kernel: Any, *args: Any, on_miss: OnMiss | None = None, **kwargs: Any) -> Config:
    """Return the fastest configuration of a kernel under `autotune` for a call with these arguments.

    The lookup covers memory, the result cache and shipped files. `on_miss` decides if nothing is known: ``tune``,
    use the ``default`` configuration, or raise `CacheMiss` (``error``). None takes the kernel's own `on_miss`.
    """
    return _autotuned("best_config", kernel).best_config(*args, on_miss=on_miss, **kwargs)


def clear_cache(kernel: Any = None, key: Any = None) -> int:
    """Forget results and their measurements, in memory and in the result cache. Returns the number removed.

    `kernel`: a kernel under `autotune`, or None for every kernel of this program and the user's whole result cache.
    `key`: forget only this key of that kernel. Raises `UsageError` for a key without a kernel.
    """
    if kernel is not None:
        return _autotuned("clear_cache", kernel).clear_cache(key)
    if key is not None:
        raise UsageError("clear_cache: a key belongs to one kernel: give kernel= too")
    for known in all_autotuned():
        known.forget()
    return ResultCache().clear()


def _autotuned(what: str, kernel: Any) -> Autotuned:
    if not isinstance(kernel, Autotuned):
        raise UsageError(f"{what}: give a kernel under @atune.autotune, got {kernel!r}")
    return kernel


def _sealed(callback: Any) -> Any:
    return Sealed(callback) if callable(callback) else callback
