"""Folders in which atune keeps files between runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

CACHE_VARIABLE = "ATUNE_CACHE_DIR"
ARTIFACTS = "artifacts"
_chosen: ContextVar[Path | None] = ContextVar("atune_cache_folder", default=None)
_named: set[Path] = set()
"""Folders that this program chose. It may load the files that it stored there."""


@contextmanager
def cache_folder_at(folder: Path | None) -> Generator[None, None, None]:
    """Make atune keep its files in `folder` inside the block, for this thread or task and those it starts."""
    if folder is None:
        yield
        return
    _named.add(folder.absolute())
    before = _chosen.set(folder.absolute())
    try:
        yield
    finally:
        _chosen.reset(before)


def chosen_cache_folder() -> Path | None:
    """Return the folder of the innermost `cache_folder_at`, or None outside. New threads do not inherit it."""
    return _chosen.get()


def cache_folder() -> Path:
    """Return atune's folder in the user's cache. Creates nothing.

    It is ``$ATUNE_CACHE_DIR`` if that is an absolute path, else ``$XDG_CACHE_HOME/atune``, or ``~/.cache/atune``.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if os.path.isabs(own := os.environ.get(CACHE_VARIABLE, "")):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification says to ignore relative paths.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "atune"


def artifacts_folder() -> Path:
    """Return the folder of kept libraries. Creates nothing."""
    return cache_folder() / ARTIFACTS


def is_cached(path: str) -> bool:
    """Tell whether `path` is in the cache folder, or in one that this program chose."""
    real = Path(path).resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in (cache_folder(), *_named))


def code_file(folder: Path, code_key: str) -> Path:
    """Return the path in the artifact store `folder` of the file that names the library with this code."""
    return folder / "codes" / f"{code_key}.json"


def lowered_file(folder: Path, ir_key: str) -> Path:
    """Return the path in the artifact store `folder` of a kernel's lowering result."""
    return folder / "lowered" / f"{ir_key}.json"


def proof_file(folder: Path, code_key: str) -> Path:
    """Return the path in the artifact store `folder` of the proof that this code is tilelang's own."""
    return folder / "proofs" / f"{code_key}.json"


def is_stored(path: str) -> bool:
    """Tell whether `path` is a stored library whose content matches its name, and not a link out of its folder."""
    real = Path(path).resolve()
    if real.parent not in {(folder / ARTIFACTS).resolve() for folder in (cache_folder(), *_named)}:
        return False
    try:
        return f"{hashlib.sha256(real.read_bytes()).hexdigest()}.so" == real.name
    except OSError:
        return False


def working_folder() -> str:
    """Return the working folder. Empty if it was removed or is not readable."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def make_private_folder(folder: str) -> None:
    """Make `folder` and its missing parents, private to the owner. Raises `OSError`."""
    if not os.path.isdir(folder):
        make_private_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
