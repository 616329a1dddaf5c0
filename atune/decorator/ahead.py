"""Early start of the processes for tuning, when a decorated kernel is defined."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING

from atune.local.fork_servers import warm_early
from atune.workload.fingerprint import kernel_fingerprint

if TYPE_CHECKING:
    from atune.decorator.autotuned import Autotuned


def warm_for(kernel: Autotuned) -> None:
    """Start the processes in the background, unless calls never tune the kernel or it already has a result."""
    if kernel.options.on_miss == "tune" and not _has_result(kernel):
        warm_early()


def _has_result(kernel: Autotuned) -> bool:
    """Tell whether the result cache has a result of the kernel's current source, for any problem."""
    cache = kernel.options.cache
    with suppress(Exception):  # the call will report what is wrong
        name = kernel.options.workload.get("name") or kernel.__name__
        found = [] if cache is None else cache.entries(kernel=name)
        source = functools.cache(lambda: kernel_fingerprint(kernel.__wrapped__))  # type: ignore[attr-defined]
        return any(entry.parts.source == source() for entry in found)
    return False
