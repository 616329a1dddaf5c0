"""Figures that are too good: measured once more before they are believed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atune.model.candidate import Config

N_NEIGHBOURS = 3
"""Neighbours that must have been measured before a figure is held against theirs."""
FAR = 0.4
"""Share of the fastest neighbour's latency below which a figure is far from its neighbours."""


def implausible(
    latency_ms: float, config: Config, measured: Iterable[tuple[Config, float]], floor_ms: float | None
) -> str:
    """Say why `latency_ms` cannot be believed at once; empty where it can.

    `measured` are the configurations measured so far with their latencies; neighbours differ from `config` in the
    value of one axis. `floor_ms` is what the device's peaks allow at best, None where that is not known.
    """
    if floor_ms is not None and latency_ms < floor_ms:
        return f"{latency_ms:.4g} ms is less than the device's peak allows for the workload ({floor_ms:.4g} ms)"
    near = [ms for other, ms in measured if _differences(config, other) == 1]
    if len(near) >= N_NEIGHBOURS and latency_ms < FAR * min(near):
        return f"{latency_ms:.4g} ms is far below the fastest of {len(near)} neighbours ({min(near):.4g} ms)"
    return ""


def _differences(one: Config, other: Config) -> int:
    missing: Any = object()
    return sum(one.get(name, missing) != other.get(name, missing) for name in one.keys() | other.keys())
