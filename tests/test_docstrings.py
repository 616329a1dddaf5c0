"""Every public name has a docstring, and so has each method of a public class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

import atune
import atune.compat.tilelang
import atune.errors
import atune.events
import atune.journal.result
import atune.layout
import atune.model.settings
import atune.results
import atune.sets
import atune.testing
from atune.engine import interfaces

PROMISES = (interfaces.Machine, interfaces.CompileWorker, interfaces.DeviceWorker)
"""The protocols that `atune.testing` keeps: what they say of a method holds for the fakes."""
MODULES = (
    atune,
    atune.compat.tilelang,
    atune.errors,
    atune.events,
    atune.journal.result,
    atune.layout,
    atune.model.settings,
    atune.results,
    atune.sets,
    atune.testing,
)
METHODS = (FunctionType, property, classmethod, staticmethod, functools.cached_property)


def public(module: ModuleType) -> dict[str, Any]:
    """Return what `module` offers: its `__all__`; without one the functions and classes that it defines."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return {name: getattr(module, name) for name in names if not name.startswith("_")}


def inherited(kind: type) -> Iterator[type]:
    """Yield `kind` and those of its bases that are atune's."""
    yield from (base for base in kind.__mro__ if base.__module__.startswith("atune"))


def silent(name: str, value: Any) -> Iterator[str]:
    """Yield `name`, and the members of a class of that name, as far as they have no docstring."""
    if not isinstance(value, (type, FunctionType)):
        return
    if not value.__doc__ or value.__doc__.startswith(f"{name}("):  # a dataclass makes that one itself
        yield name
    for base in inherited(value) if isinstance(value, type) else ():
        for member, how in vars(base).items():
            field = member in vars(base).get("__annotations__", {})
            if member[0] != "_" and not field and isinstance(how, METHODS) and not meant(value, member):
                yield f"{name}.{member}"


def meant(kind: type, member: str) -> bool:
    """Tell whether a method has a docstring, of its own or of what it overrides or keeps."""
    keeps = PROMISES if kind.__module__.startswith("atune.testing") else ()
    found = (inspect.getattr_static(where, member, None) for where in (kind, *keeps))
    return any(how is not None and inspect.getdoc(how) for how in found)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_and_method_has_a_docstring(module: ModuleType) -> None:
    lacking = {text for name, value in public(module).items() for text in silent(name, value)}
    assert not lacking
