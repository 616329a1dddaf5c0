"""How many samples a candidate gets: few if it is clearly slow, more if its samples scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence

from atune.model.measurement import median_interval
from atune.model.settings import BenchmarkSettings

PROBE = 3
"""Samples that every candidate gets."""
SECOND_LOOK = 8
"""Samples of a candidate that is not clearly slow."""
PLAINLY_SLOW, SLOW = 1.5, 1.1
"""A candidate is given up when its fastest sample is this many times slower than the best's median: after `PROBE`
samples, and after `SECOND_LOOK`. The fastest sample, so that one disturbed sample costs nobody its chance."""
MAX_SAMPLES = 10_000
KNOWN = 0.005
"""The median is known when its 95 % interval reaches no farther than this much of it, to either side."""
MOST = 4
"""Times `n_repeat` samples that one whose median is not known gets at most."""
EXTRA_US = 20_000.0
"""Device time in samples from which on nobody gets more than `n_repeat`: long calls scatter little, and cost much."""


def still_wanted(
    samples_us: Sequence[float], n_repeat: int, best_ms: float | None, *, until_known: bool = False
) -> int:
    """Return how many more samples to take after `samples_us`; 0 when it is known well enough.

    `best_ms` is the best so far by a first timing of the same kind; None takes all `n_repeat` in one go. With
    `until_known`, samples that scatter are followed by as many again.
    """
    have = len(samples_us)
    if best_ms is None:
        return n_repeat - have if have < n_repeat else _to_be_known(samples_us, n_repeat, until_known)
    steps = [(min(PROBE, n_repeat), PLAINLY_SLOW), (min(SECOND_LOOK, n_repeat), SLOW)]
    for n, factor in steps:
        if have < n:
            return n - have
        if min(samples_us) > factor * best_ms * 1e3:
            return 0
    return n_repeat - have if have < n_repeat else _to_be_known(samples_us, n_repeat, until_known)


def _to_be_known(samples_us: Sequence[float], n_repeat: int, wanted: bool) -> int:
    if not wanted or len(samples_us) < SECOND_LOOK or len(samples_us) >= MOST * n_repeat or sum(samples_us) > EXTRA_US:
        return 0
    low, median, high = median_interval(samples_us)
    return n_repeat if max(high - median, median - low) > KNOWN * median else 0


def counts(settings: BenchmarkSettings, estimate_us: float) -> tuple[int, int]:
    """Return (warm-up calls, samples): as counted, or as many as fit into the times asked for."""
    n_warmup, n_repeat = settings.n_warmup, settings.n_repeat
    if settings.warmup_ms is not None:
        n_warmup = math.ceil(settings.warmup_ms * 1e3 / max(estimate_us, 0.1))
    if settings.rep_ms is not None:
        n_repeat = max(PROBE, math.ceil(settings.rep_ms * 1e3 / max(estimate_us, 0.1)))
    return min(n_warmup, MAX_SAMPLES), min(n_repeat, MAX_SAMPLES)
