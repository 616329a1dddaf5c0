"""Detects latencies that are too good to be true. They are measured again before they count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atune.model.candidate import Config

N_NEIGHBOURS = 3
"""How many neighbours must have been measured before a latency is compared with theirs."""
FAR = 0.4
"""A latency below this share of the fastest neighbour's is doubtful."""


def implausible(
    latency_ms: float, config: Config, measured: Iterable[tuple[Config, float]], floor_ms: float | None
) -> str:
    """Return why `latency_ms` is doubtful; empty if it is plausible.

    `measured`: the configurations measured so far, with their latencies, ms. Neighbours differ from `config` in one
    axis. `floor_ms`: the least latency that the device's peaks allow, or None if unknown.
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
