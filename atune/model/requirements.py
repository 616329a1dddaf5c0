"""The packages that atune needs, and messages about packages that are missing. Imports none of them."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from importlib.util import find_spec
from typing import Any

from atune.errors import UsageError

REQUIRES = {
    "tilelang": ">=0.1.14,<0.1.16",
    "torch": ">=2.11,<3",
    "anyio": ">=4.12,<5",
    "msgspec": ">=0.20,<0.23",
    "numpy": ">=2.0,<3",
    "structlog": ">=25.1,<27",
    "cloudpickle": ">=3.0,<4",
    "nvidia-ml-py": ">=12.0,<14",
}
"""The tested versions of each package, as in pyproject.toml."""
HEAVY = {"tilelang", "torch", "numpy"}
"""Packages that are not needed for reading and showing journals."""
_MODULES = {"nvidia-ml-py": "pynvml"}
"""The names of modules whose name differs from the name of their package."""


def is_tested(package: str, version: str) -> bool:
    """Return whether a package's version is in the range in `REQUIRES`. A local part after ``+`` is ignored."""
    low, high = map(_numbers, REQUIRES[package].split(","))
    return low <= _numbers(version.partition("+")[0]) < high


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def not_installed(module: str | None) -> str:
    """If a package that atune requires has the missing `module`, return a message that says which packages to install.

    The message names all missing packages, so that one command installs them, but names `HEAVY` packages only if one of
    them has the module. The message is empty for any other module, because atune does not require this module.
    """
    wanted = (module or "").partition(".")[0]
    absent = [name for name in REQUIRES if find_spec(_MODULES.get(name, name)) is None]
    if wanted not in [_MODULES.get(name, name) for name in absent]:
        return ""
    absent = [name for name in absent if wanted in HEAVY or name not in HEAVY]
    command = shlex.join(["pip", "install", *(name + REQUIRES[name] for name in absent)])
    return f"not installed in this Python: {', '.join(absent)}. To install: {command}"


def optional(what: str, package: str) -> Any:
    """Import a package that only `what` needs. If this fails, raise `UsageError` with the command that installs it."""
    try:
        return importlib.import_module(_MODULES.get(package, package))
    except ImportError as error:
        raise UsageError(
            f"{what} needs {package}, which {sys.executable} cannot import ({error}): pip install {package}"
        ) from error
