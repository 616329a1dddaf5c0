"""Whether the definition of a decorated kernel starts the processes that tuning it will need."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING

from atune.local.fork_servers import warm_early
from atune.workload.fingerprint import kernel_fingerprint

if TYPE_CHECKING:
    from atune.decorator.autotuned import Autotuned


def warm_for(kernel: Autotuned) -> None:
    """Start them in the background, but for a kernel that is never tuned by a call or has a result already."""
    if kernel.options.on_miss == "tune" and not _has_result(kernel):
        warm_early()


def _has_result(kernel: Autotuned) -> bool:
    """Tell whether the result cache has a result of this kernel as it is written now, for any problem."""
    cache = kernel.options.cache
    with suppress(Exception):  # the call says what is wrong
        name = kernel.options.workload.get("name") or kernel.__name__
        found = [] if cache is None else cache.entries(kernel=name)
        source = functools.cache(lambda: kernel_fingerprint(kernel.__wrapped__))  # type: ignore[attr-defined]
        return any(entry.parts.source == source() for entry in found)
    return False
