"""Power and energy of a call that is repeated back to back, by NVML's counter of the energy that a GPU took."""

from __future__ import annotations

import time
from collections.abc import Callable

from atune.model.measurement import Energy

BATCH_S = 0.005
"""Seconds of calls between two looks at the counter, which steps every 20 to 100 ms."""
WINDOW_S = 0.3
"""Seconds that are measured at least, from one step of the counter to another."""
PATIENCE_S = 2.0
"""Seconds after which a counter that has not stepped often enough counts as none."""

Counter = Callable[[], int | None]
"""Returns millijoules since some moment; None where the device does not tell."""


def energy_of(
    call: Callable[[], object],
    synchronise: Callable[[], object],
    counter: Counter,
    latency_ms: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy | None:
    """Repeat `call`, which takes about `latency_ms`, and return what it takes; None where the counter does not tell.

    What counts lies between two steps of the counter, so that its period falsifies nothing.
    """
    batch = max(1, int(BATCH_S / max(latency_ms / 1e3, 1e-6)))
    known = counter()
    if known is None:
        return None
    began, calls = clock(), 0
    first: tuple[float, int, int] | None = None
    while clock() - began < PATIENCE_S:
        for _ in range(batch):
            call()
        synchronise()
        calls += batch
        now = counter()
        if now is None or now < known:
            return None
        if now == known:
            continue
        known, moment = now, clock()
        if first is None:
            first = moment, known, calls
        elif moment - first[0] >= WINDOW_S:
            return _energy(moment - first[0], known - first[1], calls - first[2])
    return None


def _energy(seconds: float, millijoules: int, calls: int) -> Energy:
    joules = millijoules / 1e3
    return Energy(power_w=round(joules / seconds, 2), call_j=float(f"{joules / calls:.5g}"), calls=calls)
