"""Where atune keeps files between runs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """Return atune's folder in the user's cache: ``$XDG_CACHE_HOME/atune``, or ``~/.cache/atune``. Creates nothing."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "atune"


def artifacts_folder() -> Path:
    """Return the folder of kept libraries. Creates nothing."""
    return cache_folder() / "artifacts"


def code_file(folder: Path, code_key: str) -> Path:
    """Return where the artifact store in `folder` tells the library that has this code."""
    return folder / "codes" / f"{code_key}.json"


def lowered_file(folder: Path, ir_key: str) -> Path:
    """Return where the artifact store in `folder` tells what a kernel was lowered to."""
    return folder / "lowered" / f"{ir_key}.json"


def proof_file(folder: Path, code_key: str) -> Path:
    """Return where the artifact store in `folder` tells that this code was proven to be tilelang's own."""
    return folder / "proofs" / f"{code_key}.json"


def is_stored(path: str) -> bool:
    """Tell whether `path` is a library in that folder, no link out of it, whose content is what its name says."""
    real = Path(path).resolve()
    if real.parent != artifacts_folder().resolve():
        return False
    try:
        return f"{hashlib.sha256(real.read_bytes()).hexdigest()}.so" == real.name
    except OSError:
        return False


def working_folder() -> str:
    """Return the working folder; empty where it was removed, or may not be looked at."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def make_private_folder(folder: str) -> None:
    """Make `folder` and the missing ones above it, for their owner alone. Raises `OSError`."""
    if not os.path.isdir(folder):
        make_private_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
