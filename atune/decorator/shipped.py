"""Results that a library ships, as files that `atune cache export` wrote."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from atune.api.cached_tune import Work
from atune.decorator.arguments import text_of
from atune.errors import UsageError
from atune.storage.result_key import CacheEntry, read_exported


def find_shipped(paths: Sequence[str], work: Work) -> CacheEntry | None:
    """Return a result of the same source, problem, device and target as `work`, with a configuration of its space.

    Results of the same versions come first, and then the latest. Raises `UsageError` for a file that cannot be read
    or that holds no exported results.
    """
    if not paths:
        return None
    key = work.key
    fitting = [
        entry
        for path in paths
        for entry in shipped_entries(path)
        if entry.parts.fingerprint in (key.fingerprint, work.former_key.fingerprint)
        and all(getattr(entry.parts, name) == getattr(key, name) for name in ("device", "target"))
        and text_of(entry.parts.problem) == text_of(key.problem)
        and work.holds(entry.config)
    ]
    return max(fitting, key=lambda entry: (entry.parts.versions == key.versions, entry.created), default=None)


def shipped_entries(path: str) -> list[CacheEntry]:
    """Return the results in a file. A changed file is read again. Raises `UsageError`."""
    return _read(path, _changed(path))


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError as error:
        raise UsageError(f"shipped: cannot read {path}: {error.strerror or error}") from error


@functools.cache
def _read(path: str, changed: int) -> list[CacheEntry]:
    try:
        return read_exported(Path(path).read_bytes())
    except (OSError, UsageError) as error:
        raise UsageError(f"shipped: {path}: {error}") from error
