"""Options by name: refuses a wrong name, and suggests the right one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

from atune.errors import UnknownOption

P = ParamSpec("P")
R = TypeVar("R")

MEANT: dict[str, tuple[str, ...]] = {
    "algorithm": ("strategy",), "arch": ("target",), "args": ("arguments",), "benchmark_method": ("method",),
    "cache": ("store",), "callback": ("on_event",), "cflags": ("flags",), "check_fn": ("check",),
    "compile_flags": ("flags",), "config": ("space",), "configs": ("space",), "constraint": ("where",),
    "constraints": ("where",), "cores": ("workers",), "cost_model": ("prior",), "cuda_graph": ("method",),
    "deadline": ("budget",), "device": ("devices",), "do_bench": ("method",), "early_config_prune": ("where",),
    "execution_backend": (), "extra_cuda_flags": ("flags",),
    "filter": ("where",), "finalists": ("n_final",), "golden": ("reference",), "gpu": ("devices",),
    "gpus": ("devices",), "input_fn": ("inputs",), "inputs_fn": ("inputs",), "iters": ("n_repeat",),
    "jobs": ("workers",), "listener": ("on_event",), "log_file": ("journal",), "log_level": ("log",),
    "logger": ("log",), "make_inputs": ("inputs",), "manual_check_prog": ("check",), "max_candidates": ("budget",),
    "max_configs": ("budget",), "max_time": ("budget",), "max_trials": ("budget",), "max_workers": ("workers",),
    "n_candidates": ("budget",), "n_iters": ("n_repeat",), "n_jobs": ("workers",), "n_repeats": ("n_repeat",),
    "n_threads": ("workers",), "n_trials": ("budget",), "n_workers": ("workers",), "num_threads": ("workers",),
    "num_trials": ("budget",), "num_workers": ("workers",), "nvcc_flags": ("flags",), "opt_flags": ("flags",),
    "optimizer": ("strategy",), "out": ("journal",), "out_file": ("journal",), "output": ("journal",),
    "parallel": ("workers",), "params": ("arguments",), "path": ("journal",),
    "perf_model": ("prior",), "problem": ("arguments",), "processes": ("workers",), "prune": ("where",),
    "prune_configs_by": ("where",), "quantiles": (), "random_seed": ("seed",), "random_state": ("seed",),
    "ref": ("reference",), "ref_prog": ("reference",), "rep": ("n_repeat", "rep_ms"), "repeat": ("n_repeat",),
    "repeats": ("n_repeat",), "reset_to_zero": ("zero",), "restore_value": ("restore",), "resume": ("journal",),
    "sampler": ("strategy",), "save": ("journal",), "search": ("strategy",), "search_space": ("space",),
    "seed_inputs": ("input_seed",), "settings": ("compile", "benchmark"), "skip_check": ("check",),
    "space": ("configs",), "supply_prog": ("inputs",), "supply_type": ("supply",), "time_limit": ("budget",),
    "timeout": ("benchmark_timeout_s", "compile_timeout_s"), "tolerance": ("rtol", "atol"), "topk": ("budget",),
    "trials": ("budget",), "tuner": ("strategy",), "use_cache": ("store",), "use_cuda_graph": ("method",),
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
    near = [] if name in MEANT else get_close_matches(name.lower(), [*known, *elsewhere], n=1, cutoff=0.7)
    return [ways[option] for option in near]


def named_options(where: str, elsewhere: Mapping[str, str] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that refuses a function's wrong keywords as `refuse_unknown` does."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            refuse_unknown(where, options, known, elsewhere)
            return function(*arguments, **options)

        return checked

    return decorate
