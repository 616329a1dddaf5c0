"""The best so far over time, as the fold keeps it."""

from __future__ import annotations

import msgspec


class Improvement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A candidate became the best so far, by first timing."""

    tried: int
    """Candidates that had an outcome by then, this one among them."""
    seconds: float
    """Since the run started; of a resumed run the seconds of all its parts."""
    latency_ms: float
    index: int
    """The candidate, as the result credits it."""
