"""The order of finalists by interleaved timings: whether it is settled, and who wins. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from atune.journal.events import CandidateMeasured
from atune.model.measurement import FinalEntry, Timing, ratio_interval

MISTAKE = 0.05
"""Chance of any wrong decision in a whole final, split over its comparisons and looks (Bonferroni)."""
TIE = 0.002
"""Two finalists are equally fast if their ratio is known to be within this much of 1."""
CLOSE = 0.005
"""A finalist that is slower by more than this, by the median of the rounds, cannot win by its key."""
SPEED_TOLERANCE = 0.05
"""Share by which the reference's latency may differ between devices of one run. On two H100s of one host, which lower
their clocks at the power cap, it differed by 2 %."""


def unsettled(timings: Mapping[int, Timing], contenders: Sequence[int], looks: int) -> list[int]:
    """Return the contenders whose order is still open, the leader first. They are timed in further rounds.

    Empty once each is known to be slower than the leader, or equally fast. `looks`: how often the order is examined at
    most. Contenders with fewer samples than others were found slower before, and do not count.
    """
    playing = _playing(timings, contenders)
    leader = min(playing, key=lambda i: timings[i].latency_ms)
    level = 1 - MISTAKE / max(1, looks * (len(contenders) - 1))
    still = [i for i in playing if i != leader and _verdict(timings[i], timings[leader], level) == "open"]
    return [leader, *still] if still else []


def equal_best(
    timings: Mapping[int, Timing], contenders: Sequence[int], keys: Mapping[int, str], looks: int
) -> list[int]:
    """Return the leader and the contenders that are statistically tied with it, or as fast."""
    playing = _playing(timings, contenders)
    leader = min(playing, key=lambda i: (timings[i].latency_ms, keys[i]))
    level = 1 - MISTAKE / max(1, looks * (len(contenders) - 1))
    return [
        i
        for i in playing
        if i == leader
        or (
            _verdict(timings[i], timings[leader], level) != "slower"
            and _ratio(timings[i], timings[leader]) <= 1 + CLOSE
        )
    ]


def final_order(
    timings: Mapping[int, Timing],
    contenders: Sequence[int],
    keys: Mapping[int, str],
    looks: int,
    default: int | None = None,
) -> list[FinalEntry]:
    """Return all entries, the winner first, the others by latency.

    The winner is the leader where its advantage holds, else the one of its equals with the smallest config key, so that
    runs repeat. It gives way to the `default` among the contenders, unless it is faster: its gain is more than `CLOSE`,
    and the 95 % interval of the gain excludes 1.
    """
    winner = min(equal_best(timings, contenders, keys, looks), key=lambda i: keys[i])
    if default is not None and default in contenders and not _gains(timings[winner], timings[default]):
        winner = default
    rest = sorted((i for i in timings if i != winner), key=lambda i: (timings[i].latency_ms, keys[i]))
    return [FinalEntry(i, timings[i]) for i in (winner, *rest)]


def finalists(
    measured: Sequence[CandidateMeasured], reference_ms: Mapping[str, float], most: int
) -> list[CandidateMeasured]:
    """Return the `most` fastest, by their first timings, and by these as multiples of their device's reference.

    `measured`: the fastest first. Devices differ in speed: so none is left out because a slower one measured it.
    """
    if not {one.device for one in measured} <= reference_ms.keys():
        return list(measured[:most])
    in_references = sorted(measured, key=lambda one: one.timing.latency_ms / reference_ms[one.device])
    chosen = {one.index for one in (*measured[:most], *in_references[:most])}
    return [one for one in measured if one.index in chosen]


def speed_outliers(reference_ms: Mapping[str, float]) -> dict[str, float]:
    """Return the devices that are off by more than `SPEED_TOLERANCE`, with how many times slower each is.

    The standard is the median device; for an even number, the faster of the two in the middle.
    """
    if len(reference_ms) < 2:
        return {}
    standard = statistics.median_low(reference_ms.values())
    return {name: ms / standard for name, ms in reference_ms.items() if abs(ms / standard - 1) > SPEED_TOLERANCE}


def _playing(timings: Mapping[int, Timing], contenders: Sequence[int]) -> list[int]:
    most = max(timings[i].n_samples for i in contenders)
    return [i for i in contenders if timings[i].n_samples == most]


def _verdict(slow: Timing, fast: Timing, level: float) -> str:
    low, _, high = ratio_interval(slow, fast, level)
    if low >= 1 - TIE and high <= 1 + TIE:
        return "tied"
    return "slower" if low > 1 else "open"


def _gains(fast: Timing, slow: Timing) -> bool:
    """Tell whether `fast` is faster as a result says it: not «as fast», and not «statistically tied»."""
    return slow.latency_ms / fast.latency_ms >= 1 + CLOSE and ratio_interval(slow, fast)[0] > 1


def _ratio(slow: Timing, fast: Timing) -> float:
    return ratio_interval(slow, fast)[1]
