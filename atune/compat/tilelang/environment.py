"""Arguments and environment variables of tilelang's tuner: their checks, and what they mean in atune's settings.

docs/migration.md has the table of both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from atune.errors import InputsMissing, NoWinner, SpaceError, UsageError, warn_caller
from atune.model.candidate import MUST_BE_PASS_CONFIGS
from atune.model.device import Target, parse_target
from atune.model.folders import TILELANG_FOLDER, is_from_import
from atune.model.options import Amount, Count, Natural, Share, converted
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages import tilelang
from atune.stages.session.session import visible_gpus
from atune.workers.system.resources import usable_cores
from atune.workload.options import SUPPLIES, supply_name


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as given. Also a ValueError, like that of tilelang's tuner."""


class CompatWarning(UserWarning):
    """A parameter of tilelang's tuner that means something else here; the message says what happens instead."""


class ConfigError(SpaceError, ValueError):
    """The configurations do not fit the kernel, or none is given. Also a ValueError, like that of tilelang's tuner."""


class ScalarMissing(InputsMissing, ValueError):
    """A scalar parameter of the kernel has no value. Also a ValueError, like that of tilelang's tuner."""


class TuningFailed(NoWinner, RuntimeError):
    """No configuration worked; `result` holds every record. Also a RuntimeError, like that of tilelang's tuner."""


_warned: set[str] = set()


def warn_once(subject: str, message: str) -> None:
    """Warn about `subject`, once per program."""
    if subject not in _warned:
        _warned.add(subject)
        warn_caller(f"{subject}: {message}", CompatWarning)


_replaced: dict[tuple[str, str], Any] = {}


def install() -> None:
    """Replace tilelang's own objects by atune's, until `uninstall`. Call it before the program imports those names.

    Raises `UsageError` for a tilelang that lacks one of them.
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
    """Restore tilelang's own objects."""
    while _replaced:
        (place, name), value = _replaced.popitem()
        setattr(importlib.import_module(place), name, value)


def original(name: str) -> Any:
    """Return tilelang's own object of that name, even while atune's replaces it."""
    place = tilelang.REPLACED[name][0]
    module = importlib.import_module(place)
    return _replaced.get((place, name), getattr(module, name))


COMPILE_TIMEOUT_S = 120.0


def _number(name: str) -> float:
    value = getattr(tilelang.env, name)
    try:
        return float(value)
    except ValueError as error:
        raise ArgumentError(f"{name} must be a number, and is {value!r}") from error


def workers() -> int | None:
    """Return the number of compile processes that the variables set; None if they set none."""
    count = int(_number("TILELANG_AUTO_TUNING_CPU_COUNTS"))
    share = _number("TILELANG_AUTO_TUNING_CPU_UTILITIES")
    most = int(_number("TILELANG_AUTO_TUNING_MAX_CPU_COUNT"))
    cores = len(usable_cores())
    if count > 0:
        wanted = min(count, cores)
    elif share != 0.9:  # tilelang's default
        wanted = max(1, int(cores * share))
    elif most > 0:
        wanted = max(1, cores - 1)
    else:
        return None
    return min(wanted, most) if most > 0 else wanted


def caching() -> bool:
    """Tell whether results may be kept and used."""
    return storing() and not tilelang.env.is_autotune_cache_disabled()


def storing() -> bool:
    """Tell whether libraries may be kept and used."""
    return bool(tilelang.env.is_cache_enabled())


def cache_root() -> Path | None:
    """Return the folder for results and libraries in `TILELANG_CACHE_DIR`; None if that is not set."""
    named = os.environ.get(TILELANG_FOLDER)
    return Path(named).expanduser() / "atune" if named and not is_from_import(named) else None


def compile_defaults(target: Any, execution_backend: str | None, verbose: bool | None) -> dict[str, Any]:
    """Return these `CompileArgs`, with what tilelang's variables say in place of None."""
    env = tilelang.env
    return {
        "target": env.get_default_target() if target is None else target,
        "execution_backend": execution_backend or str(env.get_default_execution_backend()),
        "verbose": bool(env.get_default_verbose()) if verbose is None else verbose,
    }


# Arguments

Function = Callable[..., Any] | None
_BOOL, _FUNCTION = (bool, ""), (Callable[..., Any], "must be a function")
_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("benchmark_multi_gpu", "cache_input_tensors", "early_stop", "enable_grouped_compile"), _BOOL),
    **dict.fromkeys(("skip_check", "use_pipeline", "verbose"), _BOOL),
    **dict.fromkeys(("manual_check_prog", "ref_prog", "supply_prog"), _FUNCTION),
    **dict.fromkeys(("atol", "rtol"), (Amount, "")),
    "backend": (
        Literal["event", "events", "cudagraph", "cuda_graph", "auto", "perf_counter", "wall", "cupti"],
        "must be 'event', 'cudagraph' or 'cupti'",
    ),
    "benchmark_devices": (Sequence[Natural], "must be numbers of GPUs, such as [0, 1]"),
    "do_not_specialize": (str | Sequence[str], "must be names of arguments, such as ['M', 'N']"),
    "early_stop_factor": (Annotated[float, Meta(ge=1)], ""),
    "group_compile_size": (Count, ""),
    "max_mismatched_ratio": (Share, ""),
    "out_idx": (int | Sequence[int], "must be a position of an output, such as -1, or several"),
    "pass_configs": (Mapping[str, Any], MUST_BE_PASS_CONFIGS),
    "rep": (Count, ""),
    "timeout": (float, ""),
    "warmup": (Natural, ""),
}
"""By a parameter's name its type, and what it must be where msgspec's words are not the caller's."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `given`. Raises `ArgumentError`, naming the parameter, for a wrong value."""
    for name, value in given.items():
        if name in _KINDS and value is not None:
            converted(name, value, *_KINDS[name], ArgumentError)
    if "supply_type" in given and supply_name(given["supply_type"]) not in SUPPLIES:
        raise ArgumentError(f"supply_type {given['supply_type']!r} is unknown: give {', '.join(SUPPLIES)}")
    return dict(given)


@dataclass(frozen=True)
class CompileArgs:
    """Arguments of `tilelang.compile`, which candidates are compiled with.

    `out_idx`: positions of the outputs that the kernel returns. None: it writes into tensors that it is given.
    `target`: ``auto``, ``cuda``, an arch as ``{"kind": "cuda", "arch": "sm_90a"}``, ``c`` for the CPU, or a TVM target.
    `target_host`: the target of host code: a text, a dict or a TVM target. None: tilelang's own choice.
    `execution_backend`: ``auto``; for CUDA ``tvm_ffi``, for the CPU ``cython``. Others warn.
    `pass_configs`: TileLang pass configuration. `compile_flags`: flags of the device compiler.
    `verbose`: show progress.
    """

    out_idx: list[int] | int | None = None
    execution_backend: str = "auto"
    target: Any = "auto"
    target_host: Any = None
    verbose: bool = False
    pass_configs: dict[str, Any] | None = None
    compile_flags: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        checked(vars(self))

    def compile_program(self, program: Any) -> Any:
        """Compile one PrimFunc with tilelang. Returns its `JITKernel`."""
        flags = list(self.compile_flags) if self.compile_flags else None
        return tilelang.compile(program, **{**vars(self), "compile_flags": flags})

    def __hash__(self) -> int:
        return _stable_hash(self)


@dataclass(frozen=True)
class ProfileArgs:
    """Checks and timing of candidates.

    `warmup`, `rep`: calls before the first sample, and samples. `timeout`: seconds for loading, checking and timing
    one candidate; zero or less sets no deadline. `backend`: the timing method, ``event`` or ``cudagraph``.
    `supply_type`: the distribution of inputs, by tilelang's names; `supply_prog`: a function that returns them instead.
    `ref_prog`: a function of the inputs that returns the expected outputs. `rtol`, `atol`: tolerances, as in
    `torch.testing.assert_close`; `max_mismatched_ratio`: share of elements that may lie outside. `manual_check_prog`: a
    function of outputs and expected outputs that raises if they differ. `skip_check`: compare nothing.
    `cache_input_tensors`: None and True use the same inputs for every candidate, restored before each; False makes
    new ones.
    """

    warmup: int = 25
    rep: int = 100
    timeout: float = 30
    backend: str = "event"
    supply_type: Any = "auto"
    ref_prog: Function = None
    supply_prog: Function = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Function = None
    cache_input_tensors: bool | None = None

    def __post_init__(self) -> None:
        checked(vars(self))

    def __hash__(self) -> int:
        return _stable_hash(self)


PROFILE = [field.name for field in dataclasses.fields(ProfileArgs)]


def _stable_hash(arguments: CompileArgs | ProfileArgs) -> int:
    """Return a hash that is the same in every process. Callbacks count by their presence."""
    text = json.dumps(vars(arguments), sort_keys=True, default=lambda value: callable(value) or str(value))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


# Translation of arguments

NO_DEADLINE_S = 7 * 24 * 3600.0


def plan(compile_args: CompileArgs, profile: ProfileArgs, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return where to run, arguments of `jit_kernel` for winners, and options of `atune.tune`.

    `run`: the arguments of `AutoTuner.run`, which come before those of the profile. Raises `ArgumentError` and
    `TargetError`. Warns of arguments without a meaning here.
    """
    given = {**vars(profile), **{name: value for name, value in run.items() if value is not None}}
    timeout = given["timeout"]
    target, host = resolved_target(compile_args.target), host_of(compile_args.target_host)
    compile_timeout_s = tilelang.env.get_compile_timeout_seconds()
    backend = backend_of(compile_args.execution_backend, target)
    if profile.backend == "cupti":
        warn_once("backend='cupti'", "kernels are timed by CUDA events")
    options = {
        "pipeline": given.get("use_pipeline", True),
        "progress": compile_args.verbose or sys.stderr.isatty(),
        "compile": CompileSettings(
            workers=workers(),
            group_size=_group_size(given),
            compile_timeout_s=COMPILE_TIMEOUT_S if compile_timeout_s is None else float(compile_timeout_s),
            flags=compile_args.compile_flags or None,
            target_host=host,
            store=storing(),
        ),
        "benchmark": BenchmarkSettings(
            n_warmup=given["warmup"],
            n_repeat=given["rep"],
            benchmark_timeout_s=timeout if timeout > 0 and math.isfinite(timeout) else NO_DEADLINE_S,
            check=not profile.skip_check,
            cache_inputs=profile.cache_input_tensors is not False,
            adaptive=given.get("early_stop", True),
            early_stop_factor=given.get("early_stop_factor"),
            method="auto" if profile.backend in ("event", "cupti") else profile.backend,
        ),
    }
    jit = {"out_idx": compile_args.out_idx, "execution_backend": backend, "target_host": host}
    return {
        "run": options,
        "jit": {**jit, "verbose": compile_args.verbose},
        "target": _target_text(compile_args.target, target),
        "devices": _devices(target, given),
    }


def resolved_target(target: Any) -> Target:
    """Return the target. ``auto`` is CUDA if tilelang sees a GPU, otherwise the CPU. Raises `TargetError`."""
    kind = getattr(getattr(target, "kind", None), "name", None)
    if kind is not None and not isinstance(target, Target):  # a TVM target
        target = {"kind": str(kind), "arch": str(target.attrs.get("arch", ""))} if kind == "cuda" else str(kind)
    found = parse_target(target)
    if found is None:
        import torch

        found = Target("cuda") if torch.cuda.is_available() else Target("c")
    return found


def _target_text(asked: Any, target: Target) -> str:
    """Return the resolved `target` as the engine takes it: ``auto`` where that lets it say that there is no GPU."""
    left = asked is None or str(asked) == "auto"
    return "auto" if left and target.kind == "c" and not visible_gpus() else target.arch or target.kind


def _devices(target: Target, given: Mapping[str, Any]) -> tuple[str, ...]:
    chosen, several = given.get("benchmark_devices"), given.get("benchmark_multi_gpu")
    if chosen is not None and not several:
        warn_once("benchmark_devices", "has an effect only with benchmark_multi_gpu=True, as with tilelang's tuner")
    if target.kind != "cuda":
        if several:
            warn_once("benchmark_multi_gpu", f"has no effect for target {target.kind}: there is one device")
        return ("all",)
    if several:
        return tuple(str(device) for device in dict.fromkeys(chosen or ())) or ("all",)
    torch = sys.modules.get("torch")
    current = torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    return (str(current),)


def _group_size(given: Mapping[str, Any]) -> int | None:
    size, grouped = given.get("group_compile_size"), given.get("enable_grouped_compile")
    if grouped is None:
        if size is not None:
            warn_once("group_compile_size", "has an effect only with enable_grouped_compile=True; the engine decides")
        return None
    return (size or 2) if grouped else 1


BACKENDS = {"cuda": ("tvm_ffi", "cython", "nvrtc"), "c": ("cython",)}
"""tilelang's adapters that work, by target. Candidates have the first."""


def backend_of(name: str, target: Target) -> str:
    """Return the adapter for what tilelang compiles itself. Warns where it is not that of the candidates.

    Raises `ArgumentError` for an adapter that the target lacks.
    """
    usual, *others = BACKENDS[target.kind]
    if name in others:
        warn_once(f"execution_backend={name!r}", f"counts for as_tilelang(): {usual} builds and calls the candidates")
        return name
    if name not in ("auto", usual):
        known = ", ".join(BACKENDS[target.kind])
        raise ArgumentError(f"execution_backend must be one of auto, {known} for target {target.kind}, got {name!r}")
    return "auto"


def host_of(target_host: Any) -> str | None:
    """Return the target of host code as text, for the engine. tilelang also takes a dict or a TVM target."""
    if target_host is None:
        return None
    return json.dumps(target_host) if isinstance(target_host, Mapping) else str(target_host)
