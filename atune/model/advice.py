"""Advice from other runs of the same kernel, on another problem or device: how configurations compared there."""

from __future__ import annotations

from typing import Any

import msgspec

from atune.model.candidate import Config


class Advice(msgspec.Struct, frozen=True):
    """How this space's configurations compared in another run. The journal's header keeps it.

    Failures are omitted, because a configuration that failed there may work here.
    """

    source: str
    """The journal's path, ``result``, or ``cache`` and the entry's key."""
    arguments: dict[str, Any]
    """The other run's problem."""
    devices: tuple[str, ...]
    """Models of the other run's devices."""
    best: Config
    """The fastest configuration of the other run."""
    ratios: dict[str, float]
    """By configuration key: its latency divided by that of the fastest configuration there, 1 or more."""
    others: dict[str, Config] = {}
    """By configuration key: those that a large space has, and of which its seed drew none."""

    @property
    def cached(self) -> bool:
        """Whether it is of the result cache."""
        return self.source.startswith("cache ")
