"""Meaning of tilelang's tuner's environment variables in atune.

| variable | means |
|---|---|
| `TILELANG_AUTO_TUNING_CPU_COUNTS` | compile processes; -1 leaves it to the engine |
| `TILELANG_AUTO_TUNING_CPU_UTILITIES` | share of the cores for compile processes, such as 0.5 |
| `TILELANG_AUTO_TUNING_MAX_CPU_COUNT` | compile processes at most; -1 for no limit |
| `TILELANG_CACHE_DIR` | parent of the folder `atune` for results and libraries; if unset, atune's cache folder |
| `TILELANG_DISABLE_CACHE` | 1 keeps neither results nor libraries, and uses none |
| `TILELANG_AUTO_TUNING_DISABLE_CACHE` | 1 keeps no results and uses none; libraries are still kept |
| `TILELANG_COMPILE_TIMEOUT_SECONDS` | seconds for one lowering, or for compiling one group |
| `TILELANG_DEFAULT_TARGET`, `TILELANG_EXECUTION_BACKEND`, `TILELANG_VERBOSE` | defaults of `set_compile_args` |
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from atune.errors import InputsMissing, SpaceError, UsageError
from atune.journal.result import NoWinner
from atune.model.user_callbacks import warn_caller
from atune.workers.system.inherited_state import VARIABLE, before_import, is_own
from atune.workers.system.resources import usable_cores


class CompatWarning(UserWarning):
    """A parameter of tilelang's tuner that means something else here; the message says what happens instead."""


class ConfigError(SpaceError, ValueError):
    """The configurations do not fit the kernel, or none is given. Also a ValueError, like that of tilelang's tuner."""


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as given. Also a ValueError, like that of tilelang's tuner."""


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


NAMES = {
    "autotune": ("tilelang", "tilelang.autotuner", "tilelang.autotuner.tuner"),
    "AutoTuner": ("tilelang.autotuner", "tilelang.autotuner.tuner"),
    "AutoTuneImpl": ("tilelang.autotuner.tuner",),
    "set_autotune_inputs": ("tilelang.autotuner", "tilelang.autotuner.capture"),
    "get_autotune_inputs": ("tilelang.autotuner", "tilelang.autotuner.capture", "tilelang.autotuner.tuner"),
    "AutotuneInputsCapture": ("tilelang.autotuner.capture",),
    "AutotuneResult": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
    "CompileArgs": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
    "ProfileArgs": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
}
"""Names in tilelang, and atune's objects for them."""

_replaced: dict[tuple[str, str], Any] = {}


def install() -> None:
    """Replace tilelang's own objects by atune's, until `uninstall`. Call it before the program imports those names."""
    before_import()
    ours = importlib.import_module("atune.compat.tilelang")
    for name, places in NAMES.items():
        for place in places:
            module = importlib.import_module(place)
            _replaced.setdefault((place, name), getattr(module, name))
            setattr(module, name, getattr(ours, name))


def uninstall() -> None:
    """Restore tilelang's own objects."""
    while _replaced:
        (place, name), value = _replaced.popitem()
        setattr(importlib.import_module(place), name, value)


def original(place: str, name: str) -> Any:
    """Return tilelang's own object of that name, even while atune's replaces it."""
    module = importlib.import_module(place)
    return _replaced.get((place, name), getattr(module, name))


COMPILE_TIMEOUT_S = 120.0


def _env() -> Any:
    before_import()
    from tilelang import env

    return env


def _number(name: str) -> float:
    value = getattr(_env(), name)
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


def compile_timeout_s() -> float:
    """Return the most seconds for compiling."""
    found = _env().get_compile_timeout_seconds()
    return COMPILE_TIMEOUT_S if found is None else float(found)


def caching() -> bool:
    """Tell whether results may be kept and used."""
    return storing() and not _env().is_autotune_cache_disabled()


def storing() -> bool:
    """Tell whether libraries may be kept and used."""
    return bool(_env().is_cache_enabled())


def cache_root() -> Path | None:
    """Return the folder for results and libraries in `TILELANG_CACHE_DIR`; None if that is not set."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() / "atune" if named and not is_own(named) else None


def default_target() -> Any:
    return _env().get_default_target()


def default_backend() -> str:
    return str(_env().get_default_execution_backend())


def default_verbose() -> bool:
    return bool(_env().get_default_verbose())
