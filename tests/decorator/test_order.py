"""Decorators in the wrong order are named, each with what was meant."""

from __future__ import annotations

from typing import Any

import pytest
import tilelang

import atune
from atune.decorator.order import decorators_of
from atune.errors import UsageError, WorkloadError


def test_jit_above_autotune_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"@tilelang\.jit stands above @atune\.autotune of 'kernel': swap the two"):

        @tilelang.jit(out_idx=[-1])
        @atune.autotune(space={"block": [16, 32]})
        def kernel(N: int, block: int = 16) -> Any: ...


def test_autotune_above_jit_and_alone_are_what_they_should_be() -> None:
    @atune.autotune(space={"block": [16, 32]})
    def alone(N: int, block: int = 16) -> Any: ...

    @atune.autotune(space={"block": [16, 32]})
    @tilelang.jit
    def above(N: int, block: int = 16) -> Any: ...

    assert alone.__name__ == "alone" and above.__name__ == "above"
    assert decorators_of(above.__wrapped__) == ["autotune", "jit"]


def test_a_function_without_source_has_no_decorators() -> None:
    space: dict[str, Any] = {}
    exec("def made(N, block=16): ...", space)
    assert decorators_of(space["made"]) == decorators_of(len) == []


def test_a_workload_of_a_decorated_kernel_is_refused() -> None:
    @atune.autotune(space={"block": [16, 32]})
    def kernel(N: int, block: int = 16) -> Any: ...

    with pytest.raises(WorkloadError, match=r"under @atune\.autotune, which tunes by itself: call it, or give its"):
        atune.Workload(kernel, {"block": [16]})
    assert atune.Workload(kernel.kernel, {"block": [16]}).name == "kernel"
