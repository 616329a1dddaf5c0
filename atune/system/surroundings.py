"""Comparison of what processes inherit, to tell whether a process started earlier fits this program."""

from __future__ import annotations

import functools
import importlib.util
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atune.system.paths import working_folder
from atune.system.tilelang_cache import VARIABLE, is_own

_TILELANGS = frozenset({"TVM_LIBRARY_PATH", "TL_CUTLASS_PATH", "TL_TEMPLATE_PATH"})
"""Variables that tilelang's import sets if they are unset."""
_PASSING = frozenset({"PYTEST_CURRENT_TEST"})
"""Variables that differ in each test. Neither compiling nor measuring depends on them."""
_LIMITS = tuple(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))


def surroundings() -> tuple[object, ...]:
    """Return what a process started now inherits. Processes with equal values are interchangeable.

    It covers environment, working folder, umask, limits, niceness and cores. Variables that tilelang's own import sets
    do not count, so a process started before that import fits after it.
    """
    return (
        tuple(sorted(_environment())),
        working_folder(),
        _umask(),
        tuple(map(resource.getrlimit, _LIMITS)),
        os.getpriority(os.PRIO_PROCESS, 0),
        frozenset(os.sched_getaffinity(0)),
    )


def _environment() -> Iterator[tuple[str, str]]:
    packaged = _tilelang_folder()
    for name, value in os.environ.items():
        if name == "PYTHONPATH" and packaged:
            value = os.pathsep.join(e for e in value.split(os.pathsep) if not e.startswith(packaged))
        tilelangs = name in _TILELANGS and packaged and value.startswith(packaged)
        substituted = name == VARIABLE and is_own(value)
        if (value or name != "PYTHONPATH") and not tilelangs and not substituted and name not in _PASSING:
            yield name, value


@functools.cache
def _tilelang_folder() -> str:
    """Return the folder of the tilelang that this program has or would import, with a slash. Empty without one."""
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec("tilelang")
        if found is not None and found.origin is not None:
            return os.path.join(os.path.dirname(found.origin), "")
    return ""


def _umask() -> str:
    """Return this process's umask from /proc. The system call would change it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return line.split()[1]
    return ""
