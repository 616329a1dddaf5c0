"""Early start of the processes for tuning, at the import of this package, before it is known what the program tunes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from atune.compat.tilelang import environment
from atune.local.fork_servers import warm_early
from atune.storage.result_cache import ResultCache


def warm_for_program() -> None:
    """Start them in the background, unless the program has probably tuned everything already.

    That is so if its file, and the file that imports this package, are older than the last use of the result cache.
    """
    unknown = float("inf")
    if max((_written(name, unknown) for name in _files()), default=unknown) > _last_use():
        warm_early()


def _files() -> Iterator[str]:
    """Yield the program's file, and the innermost file outside atune that is now being imported."""
    if (program := getattr(sys.modules.get("__main__"), "__file__", None)) is not None:
        yield program
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_code.co_filename
        if not name.startswith(("<", os.path.dirname(__file__))):
            yield name
            return


def _last_use() -> float:
    """Return the time of the result cache's last write, in seconds since the epoch. Finding a result writes too."""
    path = str(ResultCache(environment.cache_root()).path)
    return max(_written(path, 0.0), _written(f"{path}-wal", 0.0))


def _written(path: str, otherwise: float) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return otherwise
