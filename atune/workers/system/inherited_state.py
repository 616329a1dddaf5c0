"""What processes inherit from this program, and the cache folder that tilelang's import makes."""

from __future__ import annotations

import functools
import importlib.util
import os
import resource
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atune.model.folders import CACHE_VARIABLE, private_root, working_folder

VARIABLE = "TILELANG_CACHE_DIR"
NAME = "tilelang-cache"
_warned = False


def substitute() -> dict[str, str]:
    """Return the variable that makes tilelang use another folder. Empty if it is set or the home is writable.

    The folder is this user's below ``$TMPDIR``. A warning says so, once per program.
    """
    if os.environ.get(VARIABLE) or _can_be_made(Path(os.path.expanduser("~/.tilelang/cache"))):
        return {}
    folder = str(private_root() / NAME)
    _say(folder)
    return {VARIABLE: folder}


def before_import() -> None:
    """Set that variable in this program if tilelang is not imported yet and its import would fail."""
    if "tilelang" not in sys.modules:
        os.environ.update(substitute())


def is_own(folder: str) -> bool:
    """Tell whether `folder` comes from `substitute` and not from the user."""
    path = Path(folder)
    return path.name == NAME and path.parent.name == f"atune-{os.getuid()}"


def _can_be_made(folder: Path) -> bool:
    """Tell whether this process may make `folder`, or write into it if it exists. Makes nothing."""
    there = next((one for one in (folder, *folder.parents) if os.path.lexists(one)), None)
    return there is not None and os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def _say(folder: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"~/.tilelang/cache cannot be written, so tilelang keeps its files in {folder}; "
            f"set {VARIABLE} to choose another folder",
            RuntimeWarning,
            stacklevel=4,
        )


_TILELANGS = frozenset({"TVM_LIBRARY_PATH", "TL_CUTLASS_PATH", "TL_TEMPLATE_PATH"})
"""Variables that tilelang's import sets if they are unset."""
_OWN = frozenset({VARIABLE, CACHE_VARIABLE, "TILELANG_DISABLE_CACHE"})
"""Variables that workers get from a run, whatever their server has, or do not read."""
_SKLEARNS = {("KMP_DUPLICATE_LIB_OK", "True"), ("KMP_INIT_AT_FORK", "FALSE")}
"""What scikit-learn's import sets if it is unset: the strategy `forest` imports it during the first run."""
_LIMITS = tuple(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))


def surroundings() -> tuple[object, ...]:
    """Return what a process started now inherits. Processes with equal values are interchangeable.

    It covers environment, working folder, umask, limits, niceness and cores. Variables that the imports of tilelang and
    scikit-learn set do not count, so a process started before them fits after them. Nor do cache folders.
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
        ours = name in _OWN or (name, value) in _SKLEARNS
        if (value or name != "PYTHONPATH") and not tilelangs and not ours:
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
