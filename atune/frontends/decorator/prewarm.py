"""Early start of the processes for tuning: when a kernel is decorated, or when the drop-in is imported."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atune.workers.processes.server import warm_early
from atune.workers.storage.result_cache import ResultCache
from atune.workers.storage.result_key import CacheEntry
from atune.workload.fingerprint import kernel_fingerprint

if TYPE_CHECKING:
    from atune.frontends.decorator.autotuned import Autotuned


def for_kernel(kernel: Autotuned) -> None:
    """Start them in the background, unless calls never tune the kernel or it already has a result."""
    if kernel.options.on_miss == "tune" and not _has_result(kernel):
        warm_early()


def _has_result(kernel: Autotuned) -> bool:
    """Tell whether the result cache has a result of the kernel's current source, for any problem."""
    cache = kernel.options.cache
    with suppress(Exception):  # the call will report what is wrong
        name = kernel.options.workload.get("name") or kernel.__name__
        found = [] if cache is None else cache.entries(kernel=name)
        return any(map(of_kernel(kernel.kernel), found))
    return False


def of_kernel(kernel: Any) -> Callable[[CacheEntry], bool]:
    """Return a function that tells whether a result is of the current source of `kernel`, for any problem and space."""
    source = functools.cache(lambda tuned: kernel_fingerprint(kernel, without_defaults=tuned))
    return lambda entry: bool(entry.parts.source == source(frozenset(entry.config)))


def for_program(cache: Path | None, package: str) -> None:
    """Start them in the background, unless the program has probably tuned everything already.

    That is so if its file, and the file that imports `package`, a folder, are older than the last use of the result
    cache in `cache`. Finding a result is a use, too.
    """
    path = str(ResultCache(cache).path)
    last_use = max(_written(path, 0.0), _written(f"{path}-wal", 0.0))
    unknown = float("inf")
    if max((_written(name, unknown) for name in _files(package)), default=unknown) > last_use:
        warm_early()


def _files(package: str) -> Iterator[str]:
    """Yield the program's file, and the innermost file outside atune that is now being imported."""
    if (program := getattr(sys.modules.get("__main__"), "__file__", None)) is not None:
        yield program
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_code.co_filename
        if not name.startswith(("<", package, os.path.dirname(__file__))):
            yield name
            return


def _written(path: str, otherwise: float) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return otherwise
