"""The packages that atune needs, and messages for packages that are not installed. Imports none of them."""

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
"""Tested versions by package, as in pyproject.toml."""
HEAVY = {"tilelang", "torch", "numpy"}
"""Packages that are not needed to read and show journals."""
_MODULES = {"nvidia-ml-py": "pynvml"}
"""Module of a package, if it differs from the package's name."""


def is_tested(package: str, version: str) -> bool:
    """Return whether a package's version is in its range in `REQUIRES`, ignoring a local part after ``+``."""
    low, high = map(_numbers, REQUIRES[package].split(","))
    return low <= _numbers(version.partition("+")[0]) < high


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def not_installed(module: str | None) -> str:
    """Return a message with the packages to install, if the missing `module` is in a package that atune requires.

    It names all missing packages, so that one command installs them, but it names `HEAVY` packages only if `module` is
    in one of these. For any other module the message is empty: atune does not require it, or itself has a mistake.
    """
    wanted = (module or "").partition(".")[0]
    absent = [name for name in REQUIRES if find_spec(_MODULES.get(name, name)) is None]
    if wanted not in [_MODULES.get(name, name) for name in absent]:
        return ""
    absent = [name for name in absent if wanted in HEAVY or name not in HEAVY]
    command = shlex.join(["pip", "install", *(name + REQUIRES[name] for name in absent)])
    return f"not installed in this Python: {', '.join(absent)}. To install: {command}"


def optional(what: str, package: str) -> Any:
    """Import a package that only `what` needs. Raises `UsageError` with the command to install it if that fails."""
    try:
        return importlib.import_module(_MODULES.get(package, package))
    except ImportError as error:
        raise UsageError(
            f"{what} needs {package}, which {sys.executable} cannot import ({error}): pip install {package}"
        ) from error
