"""Measurements of a device."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated

import msgspec

from atune.model.ranges import Index, Latency, Quantity, Whole

DISTURBS = "may disturb the timings"
"""Text of every warning about another user of a device."""


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The GPU's state right after its samples were taken, from NVML. None: NVML did not report it."""

    uuid: str
    sm_mhz: Whole | None = None
    throttle: tuple[str, ...] = ()
    """Why its clocks were lowered; empty if they were not."""


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Samples of one kernel's time on one device, and the method.

    `samples_us`: in the order in which they were taken, µs. `conditions`: the GPU's state afterwards; None on the CPU.
    """

    latency_ms: Latency
    """Median of the samples."""
    spread: Quantity
    """Half the interquartile range, as a share of the median."""
    samples_us: Annotated[tuple[Latency, ...], msgspec.Meta(min_length=1)]
    method: str
    """The timing method. ``events``: CUDA events, with launches queued behind a device sleep, or ``one call at a time``
    if the call waits for the device. ``perf_counter``: the CPU's clock."""
    conditions: Conditions | None = None

    def __repr__(self) -> str:
        """Return its figures, without the samples."""
        return f"Timing({self.latency_ms:.4g} ms, spread {self.spread:.1%}, {self.n_samples} samples by {self.method})"

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.samples_us)

    @classmethod
    def of(cls, samples_us: Sequence[float], method: str, conditions: Conditions | None = None) -> Timing:
        """Summarise samples in microseconds; there must be at least one. None is shorter than a nanosecond."""
        samples_us = [max(sample, 1e-3) for sample in samples_us]
        median = statistics.median(samples_us)
        low, _, high = statistics.quantiles(samples_us, n=4) if len(samples_us) > 1 else (median, median, median)
        rounded = tuple(round(sample, 3) for sample in samples_us)
        return cls(round(median / 1e3, 9), round((high - low) / 2 / median, 5), rounded, method, conditions)

    def and_more(self, other: Timing) -> Timing:
        """Return this timing with the samples of `other` appended. `other` was taken later; its conditions count."""
        return Timing.of((*self.samples_us, *other.samples_us), self.method, other.conditions or self.conditions)


class Measurement(msgspec.Struct, frozen=True, tag="measurement", omit_defaults=True, gc=False):
    """A candidate that ran, was correct if checked, and was timed.

    `index`: the candidate's. `timing`: its first one, not the final's. `checked`: its outputs were compared.
    """

    index: int
    timing: Timing
    checked: bool = False
    max_error: float | None = None
    """Largest absolute difference to the reference over all outputs; None if not checked."""
    seconds: float = 0.0
    """Seconds that the device's process spent on it, including loading and checking."""
    writes: tuple[int, ...] = ()
    """Positions of input parameters that the kernel writes into. They were restored before each timed call."""
    set_up: tuple[int, ...] = ()
    """Positions of those that the workload's `setup` changed."""
    printed: str = ""
    """See `Record.printed`."""
    bits: str = ""
    """Digest of the outputs for the check's inputs: equal for equal bits."""
    repeats: bool = True
    """Whether two calls on the same inputs gave the same bits."""
    memory_bytes: int = 0
    """Device memory that its process has used at most so far, the context's too; 0 on the CPU."""


class FinalEntry(msgspec.Struct, frozen=True):
    """A finalist's interleaved timing. ``samples_us[r]`` of all entries were taken in the same round r."""

    index: Index
    timing: Timing


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of compiling, which is lowering and building, and of first timings.

    What failed to compile, the survey, the comparison of a compiler state and the final are not in them.
    """

    compile_s: float
    """Summed over compile workers."""
    compile_wall_s: float
    """Seconds in which at least one worker compiled."""
    benchmark_s: float
    """Summed over devices."""
    benchmark_wall_s: float
    """Seconds in which at least one device measured."""


def ratio_interval(slow: Timing, fast: Timing, level: float = 0.95) -> tuple[float, float, float]:
    """Return (low, median, high) of the round-by-round ratio slow / fast.

    The interval is `median_interval`'s. Needs interleaved timings: sample r of both is one round. If one timing has
    more rounds, only the common rounds count.
    """
    return median_interval([s / f for s, f in zip(slow.samples_us, fast.samples_us, strict=False)], level)


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return (low, median, high): the median of `values` with its confidence interval.

    It is the distribution-free interval by order statistics at `level` (Conover, Practical Nonparametric Statistics,
    3rd ed., section 3.2).
    """
    ordered = sorted(values)
    n = len(ordered)
    half = statistics.NormalDist().inv_cdf(0.5 + level / 2) * n**0.5 / 2
    low = max(0, int(n / 2 - half))
    high = min(n - 1, int(n / 2 + half))
    return ordered[low], statistics.median(ordered), ordered[high]
