"""Measurements: samples of a kernel's time and their statistics, and rates relative to the device's peaks.

The rates follow the roofline model: S. Williams, A. Waterman and D. Patterson, Roofline: An Insightful Visual
Performance Model for Multicore Architectures, CACM 52(4), 2009. The work of a problem is the same for all candidates.
The work consists of the tensors' bytes and the products' operations, without the extra work of a candidate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from atune.model.artifact import BlockWork, StaticFacts
from atune.model.device import DeviceInfo, Peaks
from atune.model.ranges import Index, Latency, Quantity, Whole

IN_FINAL = " (in a timed call)"
"""Ending of the message of a failure in a final for strangers' kernels."""
DISTURBS = "may disturb the timings"
"""A phrase in every warning about another program that uses a device."""
CLOSE = 0.005
"""Latencies that differ by at most this share are treated as equal. A finalist that is slower than the fastest finalist
by a larger share cannot win."""


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A GPU's state just after the samples were taken. A value is None if NVML does not report it."""

    uuid: str
    sm_mhz: Whole | None = None
    throttle: tuple[str, ...] = ()
    """The reasons that the GPU's clocks were lowered; empty if they were not lowered."""


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Samples of a kernel's time on a device, and the method of timing.

    `samples_us`: microseconds, in the order of the samples. `conditions`: the GPU's state after the last sample."""

    latency_ms: Latency
    """Median of the samples."""
    spread: Quantity
    """Half the interquartile range, divided by the median."""
    samples_us: Annotated[tuple[Latency, ...], msgspec.Meta(min_length=1)]
    method: str
    """The timing method. ``events`` are CUDA events, with launches queued while the device sleeps. If a call itself
    waits for the device, ``one call at a time`` is added. ``perf_counter`` is the CPU's clock."""
    conditions: Conditions | None = None

    def __repr__(self) -> str:
        return f"Timing({self.latency_ms:.4g} ms, spread {self.spread:.1%}, {self.n_samples} samples by {self.method})"

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.samples_us)

    @classmethod
    def of(cls, samples_us: Sequence[float], method: str, conditions: Conditions | None = None) -> Timing:
        """Summarise one or more samples in microseconds. A sample below a nanosecond is replaced by a nanosecond."""
        samples_us = [max(sample, 1e-3) for sample in samples_us]
        median = statistics.median(samples_us)
        low, _, high = statistics.quantiles(samples_us, n=4) if len(samples_us) > 1 else (median, median, median)
        rounded = tuple(round(sample, 3) for sample in samples_us)
        return cls(round(median / 1e3, 9), round((high - low) / 2 / median, 5), rounded, method, conditions)

    def and_more(self, other: Timing) -> Timing:
        """Return this timing with the later samples of `other` appended, and with the conditions of `other`."""
        return Timing.of((*self.samples_us, *other.samples_us), self.method, other.conditions or self.conditions)


class Measurement(msgspec.Struct, frozen=True, tag="measurement", omit_defaults=True, gc=False):
    """A candidate that ran and was timed, and whose outputs were correct if they were checked.

    `index`: the candidate's index. `timing`: the timing before the final. `checked`: the outputs were compared, and
    not all of them were empty.
    """

    index: int
    timing: Timing
    checked: bool = False
    max_error: float | None = None
    """Largest absolute difference of an output from the reference; None if the outputs were not checked."""
    seconds: float = 0.0
    """Seconds that the device's process took for the candidate, including loading and checking."""
    writes: tuple[int, ...] = ()
    """Positions of the inputs that the kernel writes into, and that were restored before each timed call."""
    set_up: tuple[int, ...] = ()
    """Positions of the inputs that the workload's `setup` changed."""
    printed: str = ""
    """See `Record.printed`."""
    bits: str = ""
    """Digest of the outputs for the check's inputs. Equal bits have equal digests."""
    repeats: bool = True
    """Whether two calls with the same inputs gave the same bits."""
    memory_bytes: int = 0
    """Largest amount of device memory that the process has used so far, with its context; 0 on the CPU."""


class FinalEntry(msgspec.Struct, frozen=True):
    """A finalist's timing. The finalists share rounds, so ``samples_us[r]`` of every finalist is from round r."""

    index: Index
    timing: Timing


def ratio_interval(slow: Timing, fast: Timing, level: float = 0.95) -> tuple[float, float, float]:
    """Return (low, median, high) of the ratio slow / fast over all rounds, by `median_interval`.

    Sample r of both timings must be from the same round. A round that only one of the timings has is ignored.
    """
    return median_interval([s / f for s, f in zip(slow.samples_us, fast.samples_us, strict=False)], level)


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return (low, median, high): the median of `values`, and its confidence interval at the given `level`.

    The interval comes from order statistics and assumes no distribution (Conover, Practical Nonparametric Statistics,
    3rd ed., section 3.2).
    """
    ordered = sorted(values)
    n = len(ordered)
    half = statistics.NormalDist().inv_cdf(0.5 + level / 2) * n**0.5 / 2
    low = max(0, int(n / 2 - half))
    high = min(n - 1, int(n / 2 + half))
    return ordered[low], statistics.median(ordered), ordered[high]


# ---- the roofline model

Bound = Literal["compute", "memory", "cache", ""]
ABOVE_MEMORY = 1.05
"""If a rate exceeds the memory's peak by this factor, a part of the data must have come from a cache."""


class ProblemWork(msgspec.Struct, frozen=True, kw_only=True):
    """Operations and bytes of a call, the same for every candidate. A number is None if it is unknown."""

    flops: float | None = None
    """Operations. By default, the least number of tensor core operations of any candidate, computed for whole tiles."""
    bytes: float | None = None
    """Bytes from and to memory. By default, the bytes of all tensors, or fewer if a candidate accesses fewer bytes."""
    rate: float = 1.0
    """Speed of tensor cores with the operands of this call, relative to 16-bit operands."""

    @classmethod
    def of(
        cls, facts: Iterable[StaticFacts | None], flops: float | None = None, n_bytes: float | None = None
    ) -> ProblemWork:
        """Return the work of a problem as given by the user, or else the smallest work of any candidate's kernel."""
        whole = [(fact.work, math.prod(fact.grid)) for fact in facts if fact and fact.work and fact.grid]
        if flops is None:
            flops = min((work.tensor_flops * blocks for work, blocks in whole if work.gemms), default=None)
        if n_bytes is None:
            n_bytes = min((_needed(work, blocks) for work, blocks in whole), default=None)
        products = [max(work.gemms, key=lambda gemm: gemm.flops) for work, _ in whole if work.gemms]
        rate = min((operand_rate(gemm.dtype) for gemm in products), default=1.0)
        return cls(flops=flops or None, bytes=n_bytes or None, rate=rate)


class Roofline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rates that follow from a latency. A rate is None if the work or the device's peak is unknown."""

    gflops_s: float | None = None
    gbytes_s: float | None = None
    compute_share: float | None = None
    """Share of the tensor cores' peak rate for operands of the problem's type."""
    memory_share: float | None = None
    """Share of the memory's peak rate. If the share is above 1, a part of the data came from a cache."""
    bound: Bound = ""
    """The peak with the larger share, which limits the work. ``cache``: data came faster than the memory allows."""

    @classmethod
    def of(cls, latency_ms: float, work: ProblemWork, peaks: Peaks | None) -> Roofline | None:
        """Return the rates for `work` done in `latency_ms`; None if the work is unknown."""
        if work.flops is work.bytes is None:
            return None
        seconds = latency_ms / 1e3
        compute = None if peaks is None or work.flops is None else work.flops / (peaks.flops_s * work.rate) / seconds
        memory = None if peaks is None or work.bytes is None else work.bytes / peaks.bytes_s / seconds
        bound: Bound = ""
        if memory is not None and memory > max(ABOVE_MEMORY, compute or 0.0):
            bound = "cache"
        elif compute is not None or memory is not None:
            bound = "compute" if (compute or 0.0) >= (memory or 0.0) else "memory"
        return cls(
            gflops_s=work.flops and float(f"{work.flops / seconds / 1e9:.6g}"),
            gbytes_s=work.bytes and float(f"{work.bytes / seconds / 1e9:.6g}"),
            compute_share=compute and round(compute, 4),
            memory_share=memory and round(memory, 4),
            bound=bound,
        )

    def describe(self) -> str:
        """Return the rates as one line of text; empty if no rate is known."""
        rates = ((self.gflops_s, "FLOP/s", self.compute_share), (self.gbytes_s, "B/s", self.memory_share))
        parts = [
            _rate_text(rate, unit) + (f" ({100 * share:.0f} % of the nominal peak)" if share is not None else "")
            for rate, unit, share in rates
            if rate is not None
        ]
        if self.bound:
            parts.append("served by a cache" if self.bound == "cache" else f"bound by {self.bound}")
        return ", ".join(parts)


def _needed(work: BlockWork, blocks: int) -> float:
    accessed = (work.read_bytes + work.write_bytes) * blocks
    return accessed if work.tensor_bytes is None else min(accessed, work.tensor_bytes)


FASTEST_TYPE, ABOVE_THE_SHEET = 4, 1.2
"""The factor by which 4-bit operands are faster than 16-bit operands, and the factor by which a board may exceed its
data sheet. For example, an H200 at 1980 MHz exceeds its data sheet by 8 %, and boards of the same name differ."""


def fastest_ms(device: DeviceInfo, flops: float | None, n_bytes: float | None) -> float | None:
    """Return the shortest possible latency of this work on `device` in ms; None if the device's peaks are unknown."""
    if device.peaks is None or not (flops or n_bytes):
        return None
    peaks = (FASTEST_TYPE * device.peaks.flops_s, device.peaks.bytes_s)
    return max((work or 0) / (ABOVE_THE_SHEET * peak) for work, peak in zip((flops, n_bytes), peaks, strict=True)) * 1e3


def _rate_text(rate: float, unit: str) -> str:
    """Return a rate, in 10^9 `unit`, as text with a prefix, such as ``756.9 TFLOP/s``."""
    return f"{rate / 1e3:.4g} T{unit}" if rate >= 1e3 else f"{rate:.4g} G{unit}"


def operand_rate(dtype: str) -> float:
    """Return the speed of tensor cores for operands of type `dtype`, relative to bfloat16."""
    if "64" in dtype:
        return 1 / 16
    if "32" in dtype:
        return 0.5  # as tf32
    return 2.0 if "8" in dtype else 1.0
