"""Presets and options of tuning, and values that depend on the architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atune.api.options import RunOptions
from atune.api.priors import chosen_prior
from atune.errors import UsageError
from atune.model.device import Target
from atune.model.options import checked, refuse_unknown
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.search.choosing import check_known

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"n_warmup": 1, "n_repeat": 5, "n_final": 3, "n_final_rounds": 5, "n_final_limit": 20},
    "thorough": {"n_repeat": 50, "n_final": 10, "n_final_rounds": 40, "n_final_limit": 400, "adaptive": False},
}
"""Options of each preset. They replace defaults of `BenchmarkSettings` and `CompileSettings`."""

_RUN = ("budget", "strategy", "prior", "seed", "pipeline")
_COMPILE = set(CompileSettings.__struct_fields__)
_BENCHMARK = set(BenchmarkSettings.__struct_fields__)

TUNING = sorted({*_COMPILE, *_BENCHMARK, *_RUN})
"""The options that `tuning` takes."""


def tuning_options(tuning: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `atune.tune`'s options for a preset's name, or for a mapping of options that may name a ``preset``.

    Options are the fields of `BenchmarkSettings` and of `CompileSettings`, and ``budget``, ``strategy``,
    ``prior``, ``seed`` (the strategy's) and ``pipeline``.

    Raises `UsageError` for another name, and for a wrong value.
    """
    if tuning is not None and not isinstance(tuning, (str, Mapping)):
        raise UsageError(f"tuning: give a preset's name or a dict of options, such as {{'budget': 40}}, got {tuning!r}")
    given: dict[str, Any] = {"preset": tuning} if isinstance(tuning, str) else dict(tuning or {})
    preset = given.pop("preset", "default")
    if preset not in PRESETS:
        raise UsageError(f"tuning: there is no preset {preset!r}; there is {', '.join(PRESETS)}")
    refuse_unknown("tuning", sorted(map(str, given)), ["preset", *TUNING])
    chosen = {**PRESETS[preset], **given}
    benchmark = {name: value for name, value in chosen.items() if name in _BENCHMARK}
    compile = {name: value for name, value in chosen.items() if name in _COMPILE}
    run = {name: chosen[name] for name in _RUN if name in chosen}
    _check_run(run)
    return {"benchmark": BenchmarkSettings(**benchmark), "compile": CompileSettings(**compile), **run}


def _check_run(run: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a wrong value. A strategy's library is asked for once a call tunes, and not here."""
    Budget.parse(run.get("budget"))
    checked("tuning", run, RunOptions)
    chosen_prior(run.get("prior"), ship=False)
    if run.get("strategy") is not None:
        check_known(run["strategy"])


class ByArch:
    """A value that depends on the architecture: ``ByArch({"sm_90": 3, "sm_80": 2}, default=1)``.

    A key is an arch such as ``sm_90`` (which covers ``sm_90a``), a target such as ``cuda``, or ``c``.
    """

    def __init__(self, values: Mapping[str, Any], **default: Any) -> None:
        if not isinstance(values, Mapping) or not values:
            raise UsageError(f"ByArch: give values by architecture, such as {{'sm_90': 3}}, got {values!r}")
        if unknown := sorted(default.keys() - {"default"}):
            raise UsageError(f"ByArch: there is no option {unknown[0]!r}; there is default")
        self.values, self.default = dict(values), default

    @property
    def every(self) -> tuple[Any, ...]:
        """All its values, the default's last."""
        return (*self.values.values(), *self.default.values())

    def value(self, target: Target, name: str) -> Any:
        """Return the value for `target`. Raises `UsageError` if it has neither a value nor a default."""
        for arch in (target.arch, target.arch.rstrip("af"), target.kind):
            if arch and arch in self.values:
                return self.values[arch]
        if "default" in self.default:
            return self.default["default"]
        raise UsageError(f"hints: {name!r} has no value for {target}, and no default; it has {', '.join(self.values)}")


def resolved(hints: Mapping[str, Any], target: Callable[[], Target]) -> dict[str, Any]:
    """Return `hints` with their values for the target, which is asked for only where one depends on it."""
    return {name: v.value(target(), name) if isinstance(v, ByArch) else v for name, v in hints.items()}
