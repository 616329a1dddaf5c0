"""Checks of arguments and environment variables of tilelang's tuner, and their translation into atune's settings.

docs/migration.md lists the arguments and the variables.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from atune.engine.settings import EngineSettings
from atune.errors import InputsMissing, NoWinner, SpaceError, UsageError, warn_caller
from atune.frontends.tuner import RunPlan
from atune.model.candidate import MUST_BE_PASS_CONFIGS
from atune.model.device import Target, parse_target
from atune.model.folders import TILELANG_FOLDER
from atune.model.options import Amount, Count, Natural, Share, converted
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.reporting.text import Output
from atune.stages import tilelang
from atune.stages.gpu import visible_gpus
from atune.workers.resources import usable_cores
from atune.workload.workload_options import SUPPLIES, supply_name


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as it was given. As in tilelang's tuner, this is also a ValueError."""


class CompatWarning(UserWarning):
    """A parameter of tilelang's tuner has another meaning here. The message says what happens instead."""


class ConfigError(SpaceError, ValueError):
    """The configurations are missing or do not fit the kernel. As in tilelang's tuner, this is also a ValueError."""


class ValueMissing(InputsMissing, ArgumentError):
    """A scalar parameter or a symbolic dimension of the kernel has no value."""


class TuningFailed(NoWinner, RuntimeError):
    """No configuration worked. `result` has every record. As in tilelang's tuner, this error is also a RuntimeError."""


_warned: set[str] = set()
warnings_of_call: ContextVar[list[str]] = ContextVar("warnings_of_call")
"""The warnings about arguments of this call, including warnings that the program has already shown."""


def warn_once(subject: str, message: str) -> None:
    """Warn about `subject` once in a program. Each result also lists the warnings about its own arguments."""
    text = f"{subject}: {message}"
    warnings_of_call.get([]).append(text)
    if subject not in _warned:
        _warned.add(subject)
        warn_caller(text, CompatWarning)


_replaced: dict[tuple[str, str], Any] = {}


def install() -> None:
    """Replace tilelang's tuner with atune's tuner until `uninstall` is called.

    Call `install` before the program imports names of the tuner. Raises `UsageError` if this tilelang lacks a name.
    """
    tilelang.untested()
    ours = importlib.import_module("atune.compat.tilelang")
    names = [(place, name) for name, places in tilelang.REPLACED.items() for place in places]
    if gone := tilelang.differences(f"{place}:{name}" for place, name in names):
        raise UsageError(f"tilelang {tilelang.__version__} cannot be replaced by atune's tuner: {'; '.join(gone)}")
    for place, name in names:
        module = importlib.import_module(place)
        _replaced.setdefault((place, name), getattr(module, name))
        setattr(module, name, getattr(ours, name))


def uninstall() -> None:
    """Restore tilelang's own tuner."""
    while _replaced:
        (place, name), value = _replaced.popitem()
        setattr(importlib.import_module(place), name, value)


COMPILE_TIMEOUT_S = 120.0


def _number(variable: str, kind: Callable[[str], Any] = int) -> Any:
    """Return the value of an environment variable as a number. Raises `ArgumentError`, which names it."""
    try:
        return kind(getattr(tilelang.env, variable))
    except ValueError as error:
        raise ArgumentError(f"{variable} must be a number: {error}") from None


def workers() -> int | None:
    """Return the number of compile workers that tilelang's variables set; None if the variables have their defaults."""
    count, share = _number("TILELANG_AUTO_TUNING_CPU_COUNTS"), _number("TILELANG_AUTO_TUNING_CPU_UTILITIES", float)
    most = _number("TILELANG_AUTO_TUNING_MAX_CPU_COUNT")
    if count <= 0 and share == 0.9 and most <= 0:
        return None
    cores = len(usable_cores())
    wanted = min(count, cores) if count > 0 else max(1, int(cores * share))
    return min(wanted, most) if most > 0 else wanted


def cache_root() -> Path | None:
    """Return the folder for results and libraries below `TILELANG_CACHE_DIR`; None if this variable is not set."""
    named = os.environ.get(TILELANG_FOLDER)
    return Path(named).expanduser() / "atune" if named else None


# Arguments

INPUTS = "with set_autotune_inputs(...)"
NOT_CALLED = "your function is not called: workers compile the kernel function's result, as set_compile_args says"
_BOOL, _FUNCTION = (bool, ""), (Callable[..., Any], "must be a function")
_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("benchmark_multi_gpu", "cache_input_tensors", "early_stop", "enable_grouped_compile"), _BOOL),
    **dict.fromkeys(("skip_check", "use_pipeline", "verbose"), _BOOL),
    **dict.fromkeys(("manual_check_prog", "ref_prog", "supply_prog"), _FUNCTION),
    **dict.fromkeys(("atol", "rtol"), (Amount, "")),
    "backend": (Literal["event", "cudagraph", "cupti"], "must be 'event', 'cudagraph' or 'cupti'"),
    "benchmark_devices": (Sequence[Natural], "must be numbers of GPUs, such as [0, 1]"),
    "do_not_specialize": (str | Sequence[str], "must be names of arguments, such as ['M', 'N']"),
    "early_stop_factor": (Annotated[float, Meta(ge=1)], ""),
    "group_compile_size": (Count, ""),
    "max_mismatched_ratio": (Share, ""),
    "out_idx": (int | Sequence[int], "must be the position of an output, such as -1, or a list of positions"),
    "pass_configs": (Mapping[str, Any], MUST_BE_PASS_CONFIGS),
    "rep": (Count, ""),
    "timeout": (float, ""),
    "tuning": (Literal["pick", "quick"], "must be 'pick' or 'quick', or None to tune all"),
    "warmup": (Natural, ""),
}
"""The type of each parameter, and what messages say about a wrong value if msgspec's words are not helpful."""


def checked_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `given`. Raises `ArgumentError`, which names the parameter, for a wrong value."""
    for name, value in given.items():
        if name in _KINDS and value is not None:
            converted(name, value, *_KINDS[name], ArgumentError)
    if "supply_type" in given and supply_name(given["supply_type"]) not in SUPPLIES:
        raise ArgumentError(f"supply_type {given['supply_type']!r} is unknown: give {', '.join(SUPPLIES)}")
    return dict(given)


def taking(theirs: Callable[..., Any], **defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a function the parameters of tilelang's function `theirs`, with other `defaults`.

    A name in `defaults` that `theirs` does not have becomes an additional keyword of the function. All arguments are
    checked, and then passed by name.
    """
    given = inspect.signature(theirs)
    ours = [p.replace(default=defaults.get(name, p.default)) for name, p in given.parameters.items()]
    own = [name for name in defaults if name not in given.parameters]
    ours += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name]) for name in own]
    signature = inspect.Signature(ours)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return function(**checked_arguments(bound.arguments))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


# Translation of arguments

NO_DEADLINE_S = 7 * 24 * 3600.0


def translated(compile_args: Any, profile: Any, run: Mapping[str, Any], tensors: str = "") -> dict[str, Any]:
    """Translate tilelang's arguments into fields of `Options`: the target, the plan, and arguments of `jit_kernel`.

    `run`: the arguments of `AutoTuner.run`, which override the profile. `tensors`: the source of the inputs; empty if
    the inputs are random. Raises `ArgumentError` and `TargetError`. Warns about arguments that have no meaning here.
    """
    given = {**vars(profile), **{name: value for name, value in run.items() if value is not None}}
    timeout = given["timeout"]
    target, host = resolved_target(compile_args.target), compile_args.target_host
    if host is not None:  # the engine needs text; tilelang also takes a dict or a TVM target
        host = json.dumps(host) if isinstance(host, Mapping) else str(host)
    compile_timeout_s = tilelang.env.get_compile_timeout_seconds()
    backend = backend_of(compile_args.execution_backend, target)
    if profile.backend == "cupti":
        warn_once("backend='cupti'", "kernels are timed by CUDA events, with a cold L2 cache as in tilelang")
    grouped, several, effect = given.get("enable_grouped_compile"), given.get("benchmark_multi_gpu"), "has no effect"
    for name, ignored, why in (
        ("benchmark_devices", not several, f"{effect} without benchmark_multi_gpu=True"),
        ("benchmark_multi_gpu", target.kind != "cuda", f"{effect} for target {target.kind}, which has one device"),
        ("early_stop_factor", given.get("early_stop") is False, f"{effect} with early_stop=False"),
        ("manual_check_prog", profile.skip_check, f"{effect} with skip_check=True"),
        ("group_compile_size", not grouped, f"{effect} without enable_grouped_compile=True"),
        ("jit_compile", True, NOT_CALLED),
        ("jit_elaborate", True, NOT_CALLED),
        ("supply_prog", tensors == INPUTS, f"is not called inside `{INPUTS}`, which gives tensors"),
        ("supply_type", tensors and supply_name(profile.supply_type) != "auto", f"{effect} together with {tensors}"),
    ):
        if ignored and given.get(name):
            warn_once(name, why)
    settings = EngineSettings(
        budget=Budget(auto=given.get("tuning") == "quick"),
        pipeline=given.get("use_pipeline", True),
        compile=CompileSettings(
            workers=workers(),
            group_size=None if grouped is None else given.get("group_compile_size", 2) if grouped else 1,
            compile_timeout_s=COMPILE_TIMEOUT_S if compile_timeout_s is None else float(compile_timeout_s),
            target_host=host,
            store=bool(tilelang.env.is_cache_enabled()),
        ),
        benchmark=BenchmarkSettings(
            n_warmup=given["warmup"],
            n_repeat=given["rep"],
            benchmark_timeout_s=timeout if timeout > 0 and math.isfinite(timeout) else NO_DEADLINE_S,
            check=not profile.skip_check,
            cache_inputs=profile.cache_input_tensors is not False,
            adaptive=given.get("early_stop", True),
            early_stop_factor=given.get("early_stop_factor"),
            l2="warm" if profile.backend == "cudagraph" else "cold",
        ),
    )
    # With "auto", the engine reports that there is no GPU.
    unseen = str(compile_args.target) in ("None", "auto") and target.kind == "c" and not visible_gpus()
    jit = {"out_idx": compile_args.out_idx, "execution_backend": backend, "target_host": host}
    return {
        "plan": RunPlan(
            settings=settings,
            devices=_devices(target, given),
            progress=compile_args.verbose or Output(sys.stderr).isatty(),
        ),
        "jit": {**jit, "verbose": compile_args.verbose},
        "target": "auto" if unseen else target.arch or target.kind,
        "on_miss": "pick" if given.get("tuning") == "pick" else "tune",
    }


def resolved_target(target: Any) -> Target:
    """Return the target. ``auto`` means CUDA if torch sees a GPU, and otherwise the CPU. Raises `TargetError`."""
    kind = getattr(getattr(target, "kind", None), "name", None)
    if kind is not None and not isinstance(target, Target):  # a TVM target
        target = {"kind": str(kind), "arch": str(target.attrs.get("arch", ""))} if kind == "cuda" else str(kind)
    resolved = parse_target(target)
    if resolved is None:
        import torch  # here, because importing torch takes seconds

        resolved = Target("cuda") if torch.cuda.is_available() else Target("c")
    return resolved


def _devices(target: Target, given: Mapping[str, Any]) -> tuple[str, ...]:
    if target.kind != "cuda":
        return ("all",)
    if given.get("benchmark_multi_gpu"):
        return tuple(str(device) for device in dict.fromkeys(given.get("benchmark_devices", ()))) or ("all",)
    torch = sys.modules.get("torch")
    current = torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    return (str(current),)


BACKENDS = {"cuda": ("tvm_ffi", "cython", "nvrtc"), "c": ("cython",)}
"""For each target, the adapters of tilelang that work. Candidates are built with the first adapter."""


def backend_of(name: str, target: Target) -> str:
    """Return the adapter for kernels that tilelang itself compiles. Warns if candidates use another adapter.

    Raises `ArgumentError` if the target does not have this adapter.
    """
    usual, *others = BACKENDS[target.kind]
    if name in others:
        warn_once(f"execution_backend={name!r}", f"only affects as_tilelang(): candidates are built with {usual}")
        return name
    if name not in ("auto", usual):
        known = ", ".join(BACKENDS[target.kind])
        raise ArgumentError(f"execution_backend must be one of auto, {known} for target {target.kind}, got {name!r}")
    return "auto"
