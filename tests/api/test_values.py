"""Values of options: a wrong one is refused where it is given, at each door, by one sentence that names it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atune
import atune.compat.tilelang as drop_in
from atune.errors import SpaceError, TargetError, UsageError, WorkloadError
from atune.model.settings import Budget


def kernel(M: int, block: int = 1) -> None:
    """Stands for a kernel factory; nothing comes as far as lowering it."""


SPACE = [{"block": 1}]
WORK = atune.Workload(kernel, SPACE, arguments={"M": 1})


async def listening(event: object) -> None:
    raise AssertionError("never called")


class NoStrategy:
    name = "mine"


def tuner() -> drop_in.AutoTuner:
    return drop_in.AutoTuner(kernel, SPACE)


DOORS: dict[str, tuple[type[Exception], Callable[..., Any]]] = {
    "Workload": (WorkloadError, lambda **given: atune.Workload(kernel, SPACE, **given)),
    "autotune": (UsageError, lambda **given: atune.autotune(kernel, **{"space": SPACE, **given})),
    "autotune(tuning)": (UsageError, lambda **given: atune.autotune(kernel, space=SPACE, tuning=given)),
    "autotune(hints)": (SpaceError, lambda **given: atune.autotune(kernel, space=SPACE, hints=given)),
    "run": (UsageError, lambda **given: atune.run(WORK, **given)),
    "CompileSettings": (UsageError, atune.CompileSettings),
    "BenchmarkSettings": (UsageError, atune.BenchmarkSettings),
    "Budget": (UsageError, Budget),
    "drop_in.autotune": (ValueError, lambda **given: drop_in.autotune(configs=SPACE, **given)),
    "set_profile_args": (ValueError, lambda **given: tuner().set_profile_args(**given)),
    "set_compile_args": (ValueError, lambda **given: tuner().set_compile_args(**given)),
    "AutoTuner.run": (ValueError, lambda **given: tuner().run(**given)),
}
NO_COUNT: list[Any] = [0, -1, 1.5, True, "4", float("nan"), None]
NO_AMOUNT: list[Any] = [float("inf"), float("nan"), -1, 10**400]
NO_NUMBER_ABOVE_0: list[Any] = [0, -0.5, True, "4", float("nan"), float("inf")]
AMOUNT = "must be a number that is not negative, or a function of arguments, got"
WRONG: list[tuple[str, str, Any, str]] = [
    # a workload, and a kernel under the decorator
    ("Workload", "arguments", 3, "arguments must be a dict of the kernel's other parameters, such as {'M': 1024}, got"),
    ("Workload", "inputs", 3, "inputs must be a list of tensors, or a function that returns one, got 3"),
    ("Workload", "reference", [*range(10**4)], "must be a function of the inputs, got [0, 1, 2, 3, 4, 5, ...]"),
    *(("Workload", "rtol", value, "rtol must be ") for value in ("1e-2", *NO_AMOUNT)),
    *(("Workload", "flops", value, f"flops {AMOUNT}") for value in ("2*M", *NO_AMOUNT)),
    ("Workload", "supply", "gaussian", "supply 'gaussian' is unknown: give auto, integer, uniform"),
    # the decorator
    ("autotune", "space", [], "No configurations to tune: space is empty"),
    ("autotune", "space", [32, 64], "space: give dicts, such as [{'block': 32}, {'block': 64}], got [32, 64]"),
    ("autotune", "space", {"blok": [16]}, "kernel takes no argument 'blok'; it takes M, block (did you mean 'block'?)"),
    ("autotune", "where", 3, "where: a constraint must be callable, got 3"),
    ("autotune", "key", 3, "key: give names of arguments, such as ['M', 'N'], got 3"),
    ("autotune(hints)", "pass_configs", 3, "hints: pass_configs must be a dict"),
    ("autotune(hints)", "compile_flags", 3, "hints: compile_flags must be a list of flags"),
    ("autotune", "symbols", {"n": "128"}, "symbols must be a dict of sizes by name, such as {'n': 1024}, got"),
    ("autotune", "tuning", 3, "tuning: give a preset's name or a dict of options, such as {'budget': 40}, got 3"),
    ("autotune", "tuning", "fast", "unknown preset 'fast'; the presets are default, quick, thorough"),
    ("autotune", "default", {"blok": 16}, "kernel takes no argument 'blok'; it takes M, block"),
    ("autotune", "cache", 3, "cache must be a path, got 3"),
    ("autotune", "shipped", 3, "shipped must be a path, got 3"),
    ("autotune", "target", "rocm", "not supported"),
    ("autotune(tuning)", "repeats", 3, "tuning: there is no option 'repeats'"),
    ("autotune(tuning)", "n_repeat", 0, "n_repeat must be a whole number >= 1, got 0"),
    ("autotune(tuning)", "budget", "soon", "budget 'soon'"),
    ("autotune(tuning)", "strategy", NoStrategy(), "give a name, or an object with a name"),
    # a run
    ("run", "accept", 3, "accept: give some of kernel, target"),
    ("run", "journal", 3, "journal must be a path, got 3"),
    *(("run", "journal", each, f"journal: {each!r} is a folder: give a file in it") for each in ("new/", "new/.")),
    ("run", "journal", "", "journal: the path is empty: give a file"),
    ("run_set", "journal", "", "journal: the path is empty: give a folder"),
    ("run", "journal", Path("latest"), "journal: 'latest' means the newest run in commands, so a new journal needs"),
    ("run", "on_event", 3, "on_event must be a function that takes an event, got 3"),
    ("run", "on_event", functools.partial(listening), "on_event must be a plain function, because atune does not"),
    ("run", "seed", -1, "seed must be a whole number >= 0, got -1"),
    ("run", "target", "hip", "target 'hip' is not supported: use auto, cuda"),
    ("run", "strategy", "genetic", "strategy 'genetic' is unknown; choose auto, exhaustive, random"),
    ("run", "devices", 0, "devices: give 'all', 'cpu' or device numbers such as [0, 1], got 0"),
    ("run", "compile", {"workers": 2}, "compile must be atune.CompileSettings(…), got {'workers': 2}"),
    ("run", "benchmark", atune.CompileSettings(), "benchmark must be atune.BenchmarkSettings(…), got"),
    *(("run", "budget", given, f"budget {given!r}: give auto, a number of") for given in ("many", "", 2.5, [1])),
    *(("run", "budget", value, "candidates must be a whole number") for value in (0, True)),
    ("run", "budget", "-5s", "seconds must be a number > 0.0"),
    ("run", "budget", "120%", "percent must be a number <= 100.0, got 120.0"),
    # its settings
    *(("CompileSettings", "workers", n, "workers must be a whole number") for n in NO_COUNT[:-1]),
    *(("BenchmarkSettings", "n_repeat", n, "n_repeat must be a whole number") for n in NO_COUNT),
    *(("BenchmarkSettings", "n_warmup", n, "n_warmup must be a whole number") for n in NO_COUNT[1:]),
    *(("BenchmarkSettings", "benchmark_timeout_s", n, "timeout_s must be a number") for n in NO_NUMBER_ABOVE_0),
    ("BenchmarkSettings", "early_stop_factor", 0.5, "early_stop_factor must be a number >= 1.0, got 0.5"),
    ("BenchmarkSettings", "adaptive", 0, "adaptive must be True or False, got 0"),
    ("CompileSettings", "flags", "-O1 -g", "must be a list of strings, such as ('-O2', '-g'), got '-O1 -g'"),
    ("CompileSettings", "target_host", "yes", "target_host must be a target such as 'c' or 'llvm', got 'yes'"),
    ("Budget", "seconds", 0, "Budget: seconds must be a number > 0.0, got 0"),
    # the drop-in, under tilelang's names
    ("set_profile_args", "warmup", -1, "warmup must be a whole number >= 0, got -1"),
    ("AutoTuner.run", "rep", 1.5, "rep must be a whole number, got 1.5"),
    ("drop_in.autotune", "supply_type", "foo", "supply_type 'foo' is unknown: give auto, integer"),
    ("drop_in.autotune", "ref_prog", 3, "ref_prog must be a function, got 3"),
    ("set_profile_args", "atol", float("nan"), "atol must be a number >= 0.0, got nan"),
    ("set_profile_args", "backend", "foo", "backend must be 'event', 'cudagraph' or 'cupti', got 'foo'"),
    ("drop_in.autotune", "early_stop", "off", "early_stop must be True or False, got 'off'"),
    ("set_compile_args", "out_idx", "x", "out_idx must be the position of an output"),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_wrong_value_is_refused_where_it_is_given(door: str) -> None:
    """By the caller's own name of it, before anything is started."""
    error, call = DOORS[door]
    rows = [row[1:] for row in WRONG if row[0] == door]
    assert rows
    for option, value, message in rows:
        with pytest.raises(error, match=re.escape(message)) as refused:
            call(**{option: value})
        assert isinstance(refused.value, UsageError) and len(str(refused.value).splitlines()) == 1
        assert option != "target" or isinstance(refused.value, TargetError | ValueError)


def test_a_decorator_refuses_what_a_workload_refuses() -> None:
    """When it is made, and not at the first call, which may be far away."""
    for _, option, value, message in [row for row in WRONG if row[0] == "Workload" and row[1] != "arguments"]:
        with pytest.raises(WorkloadError, match=re.escape(message)) as refused:
            atune.autotune(kernel, space=SPACE, **{option: value})
        assert str(refused.value).startswith(f"autotune: {option} ")


@pytest.mark.parametrize("option", ["flops", "bytes"])
def test_a_function_that_returns_no_amount_is_refused(option: str) -> None:
    with pytest.raises(WorkloadError, match=f"Workload: {option} must be a number that is not negative"):
        atune.Workload(kernel, SPACE, arguments={"M": 1}, **{option: lambda M: -1})


def test_right_values_are_taken() -> None:
    assert atune.Workload(kernel, SPACE, restore=None, zero=None).restore == ()
    assert atune.CompileSettings(target_host="llvm -mcpu=native").target_host == "llvm -mcpu=native"
    atune.BenchmarkSettings(n_warmup=0, n_final=0)
    hints = {"compile_flags": "-O2 -g", "pass_configs": {"tl.enable_fast_math": True}}
    tuning = {"strategy": "random", "seed": 3, "prior": False, "pipeline": True}
    options: dict[str, Any] = {"hints": hints, "tuning": tuning, "default": {"block": 16}, "symbols": {"n": 128}}
    assert atune.autotune(kernel, space={"block": [16, 64]}, cache=False, **options).known() == {}
