"""Values that a kernel and its reference reach: another value is another kernel, and another fingerprint."""

from __future__ import annotations

import array
import dataclasses
import functools
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tilelang.language as T

from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.stages.lowering import digest_here
from atune.workload.fingerprint import kernel_fingerprint


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: int


class Struct(msgspec.Struct, kw_only=True):
    value: int


class Private:
    def __init__(self, value: int) -> None:
        self._value, self.lock = value, threading.Lock()


class Cached(Private):
    """A field that begins with an underscore may be a cache: the fingerprint leaves it out."""


def in_module(value: int) -> Any:
    module = types.ModuleType("a_module_of_a_test")
    module.value = value  # type: ignore[attr-defined]
    return module


def subclass(value: int) -> Any:
    return type("Child", (type("Base", (), {"value": value, "__module__": __name__}),), {"__module__": __name__})


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "numpy scalar": (np.float32, float),
    "numpy int": (np.int64, int),
    "numpy array": (lambda n: np.array([n]), lambda v: v[0]),
    "range": (range, len),
    "slice": (slice, lambda v: v.stop),
    "Fraction": (Fraction, float),
    "Decimal": (Decimal, float),
    "array": (lambda n: array.array("i", [n]), lambda v: v[0]),
    "deque": (lambda n: deque([n]), lambda v: v[0]),
    "pattern": (lambda n: re.compile(str(n)), lambda v: v.pattern),
    "path": (lambda n: Path(str(n)), lambda v: v.name),
    "partial": (lambda n: functools.partial(int, n), lambda v: v()),
    "namespace": (lambda n: types.SimpleNamespace(of=Fraction(n)), lambda v: v.of),
    "slotted dataclass": (Slotted, lambda v: v.value),
    "struct": (lambda n: Struct(value=n), lambda v: v.value),
    "base class": (subclass, lambda v: v.value),
    "module": (in_module, lambda v: v.value),
    "nested": (lambda n: {"of": [Slotted(n)]}, lambda v: v["of"][0].value),
    "private": (Private, lambda v: v._value),
}


def kernel_of(value: Any, factor_of: Callable[[Any], Any]) -> Any:
    def scale(n: int = 64) -> Any:
        factor = float(factor_of(value))

        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                for i in T.serial(n):
                    B[i] = A[i] * factor

        return main

    return scale


@pytest.mark.parametrize("kind", KINDS)
def test_another_value_is_another_kernel(kind: str) -> None:
    """And the same value the same one."""
    make, factor_of = KINDS[kind]
    target, settings = Target("c"), CompileSettings()
    one, other, same = (digest_here(kernel_of(make(n), factor_of), {}, {}, target, settings) for n in (2, 3, 2))
    assert one and one == same != other


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "private"])
def test_another_value_is_another_fingerprint(kind: str) -> None:
    make = KINDS[kind][0]
    one, other, same = (kernel_fingerprint(read(make(n))) for n in (2, 3, 2))
    assert one == same != other


def read(held: Any) -> Callable[[], Any]:
    def reference() -> Any:
        return held.value

    return reference


def test_a_field_that_may_be_a_cache_is_left_out_of_the_fingerprint() -> None:
    """What cannot be sent, such as a lock, counts by its type."""
    assert kernel_fingerprint(read(Private(2))) == kernel_fingerprint(read(Private(3)))
    assert kernel_fingerprint(read(Private(2))) != kernel_fingerprint(read(Cached(2)))


def test_what_is_reached_through_modules_counts_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function, a module in a package, and one that leads back; what is not used does not count."""
    package = in_module(1)
    package.inner, package.other = in_module(5), 1
    package.inner.a_module_of_a_test = package
    monkeypatch.setitem(sys.modules, package.__name__, package)

    def reference() -> Any:
        return package.inner.value, package.inner.a_module_of_a_test

    before = kernel_fingerprint(reference)
    package.other = 2
    assert kernel_fingerprint(reference) == before
    package.inner.value = 6
    assert kernel_fingerprint(reference) != before
