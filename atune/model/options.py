"""Options by name: refuses a wrong name, and suggests the right one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from atune.errors import UnknownOption
from atune.model.former_names import renamed

P = ParamSpec("P")
R = TypeVar("R")

MEANT: dict[str, tuple[str, ...]] = {
    "callback": ("on_event",), "check_fn": ("check",), "compile_flags": ("flags",), "config": ("space",),
    "configs": ("space",), "constraint": ("where",), "constraints": ("where",), "device": ("devices",),
    "early_config_prune": ("where",), "iters": ("n_repeat",), "jobs": ("workers",), "listener": ("on_event",),
    "logger": ("log",), "manual_check_prog": ("check",), "max_workers": ("workers",), "n_iters": ("n_repeat",),
    "n_jobs": ("workers",), "n_repeats": ("n_repeat",), "n_workers": ("workers",), "num_workers": ("workers",),
    "params": ("arguments",), "problem": ("arguments",), "ref": ("reference",), "ref_prog": ("reference",),
    "rep": ("n_repeat", "rep_ms"), "repeat": ("n_repeat",), "repeats": ("n_repeat",), "reset_to_zero": ("zero",),
    "restore_value": ("restore",), "search_space": ("space",), "settings": ("compile", "benchmark"),
    "skip_check": ("check",), "space": ("configs",), "supply_prog": ("inputs",), "supply_type": ("supply",),
    "time_limit": ("budget",), "timeout": ("benchmark_timeout_s", "compile_timeout_s"), "topk": ("budget",),
    "verify": ("check",), "warmup": ("n_warmup", "warmup_ms"), "warmups": ("n_warmup",),
}  # fmt: skip
"""atune's names for options that other tuners have, or that users may guess."""


def refuse_unknown(
    where: str, given: Iterable[str], known: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise `UnknownOption`, naming `where`, for the first name of `given` that is not `known`.

    `elsewhere`: how to write the options of another place, by name, such as ``{"n_warmup":
    "benchmark=BenchmarkSettings(n_warmup=…)"}``.
    """
    for name in given:
        if name not in known:
            meant = _meant(name, known, elsewhere or {})
            said = f"did you mean {' or '.join(meant)}?" if meant else f"there is {', '.join(known)}"
            raise UnknownOption(f"{where}: there is no option {name!r}; {said}")


def _meant(name: str, known: Sequence[str], elsewhere: Mapping[str, str]) -> list[str]:
    """Return how to write the option that `name` most likely means; nothing if no option is similar."""
    ways = {**elsewhere, **{option: repr(option) for option in known}}
    alike = [option for option in (name, *MEANT.get(name, ())) if option in ways]
    if alike:
        return [ways[option] for option in alike if option in known] or [ways[option] for option in alike]
    near = get_close_matches(name.lower(), [*known, *elsewhere], n=1, cutoff=0.7)
    return [ways[option] for option in near]


def named_options(
    where: str, elsewhere: Mapping[str, str] | None = None, former: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that refuses a function's wrong keywords as `refuse_unknown` does.

    `former`: current names of options by former names, which work with a warning.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            today: Any = renamed(where, options, former or {})
            refuse_unknown(where, today, known, elsewhere)
            return function(*arguments, **today)

        return checked

    return decorate
