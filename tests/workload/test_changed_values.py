"""Values that a kernel and its reference reach: another value is another fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

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


KINDS: dict[str, Callable[[int], Any]] = {
    "numpy scalar": np.float32,
    "numpy array": lambda n: np.array([n]),
    "range": range,
    "deque": lambda n: deque([n]),
    "pattern": lambda n: re.compile(str(n)),
    "partial": lambda n: functools.partial(int, n),
    "namespace": lambda n: types.SimpleNamespace(of=Fraction(n)),
    "slotted dataclass": Slotted,
    "struct": lambda n: Struct(value=n),
    "base class": subclass,
    "module": in_module,
    "nested": lambda n: {"of": [Slotted(n)]},
}


def read(held: Any) -> Callable[[], Any]:
    def reference() -> Any:
        return held.value

    return reference


@pytest.mark.parametrize("kind", KINDS)
def test_another_value_is_another_fingerprint(kind: str) -> None:
    """And the same value the same one."""
    one, other, same = (kernel_fingerprint(read(KINDS[kind](n))) for n in (2, 3, 2))
    assert one == same != other


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
