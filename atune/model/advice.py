"""What a run takes over from another problem or device of the same kernel: how configurations compared there."""

from __future__ import annotations

from typing import Any

import msgspec

from atune.model.candidate import Config


class Advice(msgspec.Struct, frozen=True):
    """How this space's configurations compared elsewhere. It is kept in the journal's header.

    Failures are left out: what failed elsewhere may work here.
    """

    source: str
    """The journal's path, ``result``, or ``cache`` and the entry's key."""
    arguments: dict[str, Any]
    """The problem there."""
    devices: tuple[str, ...]
    """Models of the devices there."""
    best: Config
    """The fastest of them there."""
    ratios: dict[str, float]
    """By configuration key: the latency there over that of the fastest configuration there, 1 or more."""
