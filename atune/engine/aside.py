"""Long computations of the engine, kept out of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from atune.workload.workload import WorkloadSpec

AT_ONCE = 500
"""Up to this many configurations, planning runs in the event loop; above, in a thread."""

T = TypeVar("T")


async def computed(spec: WorkloadSpec, compute: Callable[[], T], *, quick: bool = True) -> T:
    """Return the result of `compute`. It runs in a thread if it may take long, to keep the event loop free."""
    if len(spec.configs) <= AT_ONCE and quick:
        return compute()
    return await anyio.to_thread.run_sync(compute, abandon_on_cancel=True)
