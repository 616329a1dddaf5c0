"""Values of a workload's, a decorator's and a run's options: wrong ones are refused where they are given."""

from __future__ import annotations

import re
from typing import Any

import pytest

import atune
from atune.testing import FakeMachine


def kernel(M: int, block: int = 1) -> None:
    """Stands for a kernel factory; nothing comes as far as lowering it."""


SPACE = [{"block": 1}]
NO_AMOUNTS = [float("inf"), float("nan"), -1, 10**400]

WORKLOADS: list[tuple[str, Any, str]] = [
    ("arguments", 3, "must be a dict of the kernel's other parameters, such as {'M': 1024}, got 3"),
    ("arguments", [("M", 3)], "must be a dict of"),
    ("inputs", 3, "must be a list of tensors, or a function that returns one, got 3"),
    ("inputs", "randn", "must be a list of tensors"),
    ("reference", [*range(10**4)], "must be a function of the inputs, got [0, 1, 2, 3, 4, 5, ...]"),
    ("reference", "torch", "must be a function of the inputs, got 'torch'"),
    ("check", True, "must be a function of the outputs, got True"),
    ("setup", {}, "must be a function of the inputs"),
    ("out_idx", 1.5, "must be a position of an output, such as -1, or several, got 1.5"),
    ("out_idx", "-1", "must be a position"),
    ("out_idx", True, "must be a position"),
    ("rtol", "1e-2", "must be a number, zero or more, got '1e-2'"),
    ("atol", float("nan"), "must be a number, zero or more, got nan"),
    ("atol", -1, "must be a number, zero or more, got -1"),
    ("max_mismatched_ratio", 5, "must be a share, from 0 to 1, got 5"),
    ("restore", 0, "must be positions of parameters, such as [0], got 0"),
    ("zero", b"x", "must be positions of parameters"),
    *((name, value, "must be a number, zero or more") for name in ("flops", "bytes") for value in NO_AMOUNTS),
    ("flops", "2*M", "must be a number, zero or more, or a function of arguments, got '2*M'"),
    ("bytes", [3], "must be a number, zero or more, or a function"),
    ("default", 64, "must be a configuration as a dict, such as {'block': 64}, got 64"),
    ("default", "default", "must be a configuration as a dict"),
    ("name", 3, "must be a text, got 3"),
    ("supply", "gaussian", "'gaussian' is unknown: give auto, integer, uniform"),
]


@pytest.mark.parametrize(("option", "value", "message"), WORKLOADS)
def test_a_value_that_a_workload_cannot_have_is_refused(option: str, value: Any, message: str) -> None:
    with pytest.raises(atune.errors.WorkloadError, match=re.escape(f"Workload: {option} {message}")):
        atune.Workload(kernel, SPACE, **{option: value})


@pytest.mark.parametrize("option", ["flops", "bytes"])
@pytest.mark.parametrize("value", NO_AMOUNTS)
def test_a_function_that_returns_no_amount_is_refused(option: str, value: float) -> None:
    with pytest.raises(atune.errors.WorkloadError, match=f"Workload: {option} must be a number, zero or more"):
        atune.Workload(kernel, SPACE, arguments={"M": 1}, **{option: lambda M: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("option", "value", "message"), [case for case in WORKLOADS if case[0] != "arguments"])
def test_a_decorator_refuses_what_a_workload_refuses(option: str, value: Any, message: str) -> None:
    """When it is made, and not at the first call, which may be far away."""
    with pytest.raises(atune.errors.WorkloadError, match=re.escape(f"autotune: {option} {message}")):
        atune.autotune(kernel, space=SPACE, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("space", [], "No configurations to tune: space is empty"),
        ("space", [32, 64], "space: give dicts"),
        ("where", 3, "where: a constraint must be callable, got 3"),
        ("where", [None], "where: a constraint must be callable, got None"),
        ("key", 3, "key: give names of arguments, such as ['M', 'N'], got 3"),
        ("hints", 3, "autotune: hints must be a dict of the kernel's arguments"),
        ("symbols", "n", "autotune: symbols must be a dict of sizes by name"),
        ("tune_on", 3, "autotune: tune_on must be a function of the call's arguments, got 3"),
        ("tuning", 3, "tuning: give a preset's name or a dict of options, such as {'budget': 40}, got 3"),
        ("cache", 3, "cache must be a path, got 3"),
        ("shipped", 3, "shipped must be a path, got 3"),
        ("shipped", [None], "shipped must be a path, or a list of paths, got None"),
        ("progress", "yes", "progress must be True or False, got 'yes'"),
        ("on_event", 3, "on_event must be a function of an event, got 3"),
    ],
)
def test_a_decorator_refuses_wrong_values_of_its_own_options(option: str, value: Any, message: str) -> None:
    with pytest.raises(atune.errors.UsageError, match=re.escape(message)):
        atune.autotune(kernel, **{"space": SPACE, option: value})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("accept", 3, "accept: give some of kernel, target"),
        ("accept", None, "accept: give some of kernel, target"),
        ("journal", 3, "journal must be a path, got 3"),
        ("journal", b"run.jsonl", "journal must be a path, got b'run.jsonl'"),
        ("seed", "3", "seed must be a whole number, zero or more, got '3'"),
        ("seed", None, "seed must be a whole number, zero or more, got None"),
    ],
)
def test_a_run_refuses_wrong_values_before_it_starts(option: str, value: Any, message: str) -> None:
    with pytest.raises(atune.errors.UsageError, match="^" + re.escape(message)):
        atune.run(machine=FakeMachine(1), **{option: value})


def test_none_stands_for_no_positions() -> None:
    assert atune.Workload(kernel, SPACE, restore=None, zero=None).restore == ()  # type: ignore[arg-type]


def test_a_host_that_tilelang_does_not_generate_for_is_refused() -> None:
    with pytest.raises(atune.errors.UsageError, match="target_host 'yes' is unknown: use 'c' or 'llvm'"):
        atune.CompileSettings(target_host="yes")
    assert atune.CompileSettings(target_host="llvm -mcpu=native").target_host == "llvm -mcpu=native"
