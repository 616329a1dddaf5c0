"""Timing by CUPTI, through torch's profiler: the time of each kernel on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atune.stages.measure.timer import CudaTimer, Timed

MARK = "spin_kernel"
"""Part of the name of the kernel behind `torch.cuda._sleep`: it stands before and after each timed call."""
ATTEMPTS = 3
Span = tuple[float, float, str]
"""Start and end on the device, µs, and the name of what ran."""


class CuptiTimer(CudaTimer):
    """As `CudaTimer`, with CUPTI's records in place of events.

    A sample is the sum of what a call's kernels and copies took; gaps between them do not count. Calls are told apart
    by marker kernels, not by names: a timed kernel may be the same as the one that empties the cache. Raises
    RuntimeError where CUPTI delivers no records.
    """

    method = "cupti"

    def __init__(self) -> None:
        super().__init__()
        self._batch([Timed(self.flush.max)])  # the profiler's own start takes long, and may fail

    def _batch(self, calls: Sequence[Timed]) -> list[float]:
        for _ in range(ATTEMPTS):
            samples = between_marks(self._recorded(calls), len(calls))
            if samples is not None:
                return samples
        raise RuntimeError("CUPTI does not deliver the kernels' records here: use method 'events' or 'cuda_graph'")

    def _recorded(self, calls: Sequence[Timed]) -> list[Span]:
        torch = self.torch
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            torch.cuda._sleep(self.SLEEP_CYCLES + self.CYCLES_PER_LAUNCH * len(calls))  # the launches queue behind it
            for timed in calls:
                if timed.before is not None:
                    timed.before()
                self._evict()
                torch.cuda._sleep(1)
                timed.call()
                torch.cuda._sleep(1)
            torch.cuda.synchronize()
        return [
            (event.time_range.start, event.time_range.end, event.name)
            for event in profiler.events()
            if getattr(event.device_type, "name", "") == "CUDA" and not event.is_user_annotation
        ]


def between_marks(spans: Sequence[Span], n: int) -> list[float] | None:
    """Return the time spent between the two marks of each of `n` calls, µs; None where records are missing.

    The first mark is the sleep that all calls are queued behind.
    """
    ordered = sorted(spans)
    marks = [i for i, (_, _, name) in enumerate(ordered) if MARK in name]
    if len(marks) != 2 * n + 1:
        return None
    samples = []
    for first, last in zip(marks[1::2], marks[2::2], strict=True):
        inside: list[Any] = list(ordered[first + 1 : last])
        if not inside:
            return None
        samples.append(sum(end - start for start, end, _ in inside))
    return samples
