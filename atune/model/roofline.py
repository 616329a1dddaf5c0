"""The roofline model: how near a kernel comes to its device's peaks.

S. Williams, A. Waterman and D. Patterson, Roofline: An Insightful Visual Performance Model for Multicore Architectures,
CACM 52(4), 2009. The work of a problem is the same for all candidates. It counts what its tensors and products need,
and no extra work of a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from atune.model.artifact import BlockWork, StaticFacts

Bound = Literal["compute", "memory", "cache", ""]
ABOVE_MEMORY = 1.05
"""Share of the memory's peak above which some bytes must have come from a cache."""


class Peaks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Peak rates of a device, by its data sheet."""

    flops_s: float
    """Operations per second of its tensor cores, dense, with operands of 16 bits and sums in float32."""
    bytes_s: float
    """Bytes per second, read and written, of its memory."""


class ProblemWork(msgspec.Struct, frozen=True, kw_only=True):
    """The operations and bytes of one call, for every candidate. None: neither given nor known."""

    flops: float | None = None
    """Operations on tensor cores, if read off the kernel: products of whole tiles, of the candidate with the fewest."""
    bytes: float | None = None
    """Bytes to and from memory, if read off the kernel: every tensor once; less if a candidate requests less."""
    rate: float = 1.0
    """Speed of tensor cores with these operands, relative to operands of 16 bits."""


class Roofline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rates of a latency. None if the work, or the device's peak, is unknown."""

    gflops_s: float | None = None
    gbytes_s: float | None = None
    compute_share: float | None = None
    """Share of the peak of the tensor cores, with the problem's operands."""
    memory_share: float | None = None
    """Share of the peak of the memory. Above 1 the data came from a cache."""
    bound: Bound = ""
    """The peak that limits this work, as it alone would take longer. ``cache``: faster than memory."""
    peaks: Literal["nominal", ""] = ""
    """Source of the peaks: the data sheet; empty where they are not known."""

    def describe(self) -> str:
        """Return it as a line of text; empty if nothing is known."""
        rates = ((self.gflops_s, "FLOP/s", self.compute_share), (self.gbytes_s, "B/s", self.memory_share))
        parts = [
            rate_text(rate, unit) + (f" ({100 * share:.0f} % of the nominal peak)" if share is not None else "")
            for rate, unit, share in rates
            if rate is not None
        ]
        bounds = {"compute": "bound by compute", "memory": "bound by memory", "cache": "served by a cache", "": ""}
        return ", ".join([*parts, *filter(None, [bounds[self.bound]])])


def problem_work(
    facts: Iterable[StaticFacts | None], flops: float | None = None, n_bytes: float | None = None
) -> ProblemWork:
    """Return the work of a problem: as the user gave it, otherwise the least of any candidate's kernel."""
    whole = [(fact.work, math.prod(fact.grid)) for fact in facts if fact and fact.work and fact.grid]
    if flops is None:
        flops = min((work.tensor_flops * blocks for work, blocks in whole if work.gemms), default=None)
    if n_bytes is None:
        n_bytes = min((_needed(work, blocks) for work, blocks in whole), default=None)
    return ProblemWork(
        flops=flops or None, bytes=n_bytes or None, rate=min((_rate(work) for work, _ in whole), default=1.0)
    )


def roofline(latency_ms: float, work: ProblemWork, peaks: Peaks | None) -> Roofline | None:
    """Return the rates of `work` in `latency_ms`; None if the work or the time is unknown."""
    if not (latency_ms > 0 and math.isfinite(latency_ms)) or work.flops is work.bytes is None:
        return None
    seconds = latency_ms / 1e3
    compute = None if peaks is None or work.flops is None else work.flops / (peaks.flops_s * work.rate) / seconds
    memory = None if peaks is None or work.bytes is None else work.bytes / peaks.bytes_s / seconds
    return Roofline(
        gflops_s=_rounded(work.flops, seconds),
        gbytes_s=_rounded(work.bytes, seconds),
        compute_share=None if compute is None else round(compute, 4),
        memory_share=None if memory is None else round(memory, 4),
        bound=_bound(compute, memory),
        peaks="" if peaks is None else "nominal",
    )


def rate_text(rate: float, unit: str, digits: int = 4) -> str:
    """Return a rate of 10^9 `unit` with its prefix, such as ``756.9 TFLOP/s``."""
    return f"{rate / 1e3:.{digits}g} T{unit}" if rate >= 1e3 else f"{rate:.{digits}g} G{unit}"


def operand_rate(dtype: str) -> float:
    """Return the speed of tensor cores with operands of a type, relative to bfloat16."""
    if "64" in dtype:
        return 1 / 16
    if "32" in dtype:
        return 0.5  # as tf32
    return 2.0 if "8" in dtype else 1.0


def _needed(work: BlockWork, blocks: int) -> float:
    asked = (work.read_bytes + work.write_bytes) * blocks
    return asked if work.tensor_bytes is None else min(asked, work.tensor_bytes)


def _rate(work: BlockWork) -> float:
    """Return the rate for the operand type of most of a kernel's products."""
    return operand_rate(max(work.gemms, key=lambda gemm: gemm.flops).dtype) if work.gemms else 1.0


def _bound(compute: float | None, memory: float | None) -> Bound:
    if memory is not None and memory > ABOVE_MEMORY and memory > (compute or 0.0):
        return "cache"
    if compute is None:
        return "" if memory is None else "memory"
    return "compute" if memory is None or compute >= memory else "memory"


def _rounded(amount: float | None, seconds: float) -> float | None:
    return None if amount is None else float(f"{amount / seconds / 1e9:.6g}")
