"""A replacement for tilelang's cache folder if the home folder is not writable. tilelang's import makes the folder."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from atune.system.folders import private_root

VARIABLE = "TILELANG_CACHE_DIR"
NAME = "tilelang-cache"
_said = False


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
    global _said
    if not _said:
        _said = True
        warnings.warn(
            f"~/.tilelang/cache cannot be written, so tilelang keeps its files in {folder}; "
            f"set {VARIABLE} to choose another folder",
            RuntimeWarning,
            stacklevel=4,
        )
