"""A spy on this process: what tilelang lowers or compiles in it, and the compilers that it starts."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

STEPS = (
    ("tilelang", "compile"),
    ("tilelang.cache", "cached"),
    ("tilelang.jit.kernel", "JITKernel._compile_and_create_adapter"),
    ("tilelang.engine.lower", "lower"),
    ("tilelang.engine.lower", "lower_with_context"),
    ("tilelang.engine.lower", "lower_to_host_device_ir"),
    ("tilelang.jit.adapter.libgen", "LibraryGenerator.compile_lib"),
)
"""All that stands between a PrimFunc and its library."""
COMPILERS = {"g++", "gcc", "c++", "cc", "cc1plus", "clang++", "nvcc", "cicc", "ptxas"}


def spy(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names each step that this process takes from now on; each is taken as ever."""
    seen: list[str] = []
    for module, path in STEPS:
        owner = importlib.import_module(module)
        *inner, name = path.split(".")
        for part in inner:
            owner = getattr(owner, part)
        patch.setattr(owner, name, _noting(seen, path, getattr(owner, name)))
    start = subprocess.Popen.__init__

    def started(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        words = [str(word) for word in ([args] if isinstance(args, (str, Path)) else args)]
        if Path(words[0].split()[0]).name in COMPILERS and "--version" not in words:
            seen.append(words[0])
        start(self, args, *rest, **options)

    patch.setattr(subprocess.Popen, "__init__", started)
    return seen


def _noting(seen: list[str], name: str, step: Any) -> Any:
    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(name)
        return step(*arguments, **options)

    return noted
