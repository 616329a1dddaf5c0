"""Decorators in the wrong order are named, each with what was meant."""

from __future__ import annotations

from typing import Any

import pytest
import tilelang

import atune
from atune.decorator.decorator import _decorators_of as decorators_of
from atune.errors import SpaceError, UsageError, WorkloadError


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


def test_a_name_that_the_kernel_does_not_take_fails_where_it_is_decorated() -> None:
    for options in ({"space": {"blok": [16]}}, {"space": {"block": [16]}, "hints": {"blok": 1}}):
        decorate: Any = atune.autotune(**options)
        with pytest.raises(SpaceError, match=r"takes no argument 'blok'; it takes N, block \(did you mean 'block'\?\)"):

            @decorate
            def kernel(N: int, block: int = 16) -> Any: ...

    @atune.autotune(space={"block": [16], "pass_configs": [{}, {"tl.disable_tma_lower": True}]})
    def with_flags(N: int, block: int = 16) -> Any: ...


def test_autotune_without_a_space_says_how_to_give_one() -> None:
    bare: Any = atune.autotune
    with pytest.raises(SpaceError, match=r"autotune: give a space, such as @atune\.autotune\(space={"):

        @bare
        def kernel(N: int, block: int = 16) -> Any: ...


def test_a_prim_func_in_place_of_its_function_is_not_printed_whole() -> None:
    class PrimFunc:
        """Stands in for tilelang's, which can be called, too."""

        def __repr__(self) -> str:
            return "a page\n" * 40

    with pytest.raises(WorkloadError, match=r"got a PrimFunc: do not call the function$"):
        atune.Workload(PrimFunc(), {"block": [16]})
