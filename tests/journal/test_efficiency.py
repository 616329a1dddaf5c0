"""Rooflines of a result: pure functions of its events."""

from __future__ import annotations

import msgspec
import pytest
from event_streams import Stream, timing

from atune.journal.events import CandidateLowered, DeviceReady, ReferenceMeasured, RunStarted
from atune.journal.result import Result
from atune.model.artifact import Access, BlockWork, Gemm, StaticFacts
from atune.model.device import DeviceInfo
from atune.model.roofline import Peaks, Roofline, problem_work, roofline
from atune.reporting.summary import summary

PEAKS = Peaks(flops_s=1e12, bytes_s=1e11)


def product(m: int, blocks: int, dtype: str = "bfloat16", asked: float = 1e9) -> StaticFacts:
    """One block's share of a product of m × 100 × 100 a call, with tensors of a megabyte."""
    gemm = Gemm(m=m, n=100, k=100, calls=1.0, dtype=dtype)
    work = BlockWork(gemms=(gemm,), reads=(Access(n_bytes=asked),), tensor_bytes=1_000_000)
    return StaticFacts(grid=(blocks, 1, 1), work=work)


def run(peaks: Peaks | None = PEAKS, **header: float) -> Result:
    stream = Stream(total=2)
    started = stream.events[0]
    assert isinstance(started, RunStarted)
    stream.events[0] = msgspec.structs.replace(started, **header)
    stream.add(DeviceReady, device=DeviceInfo("cpu", "a device", peaks=peaks))
    stream.candidate(0, 1.0).candidate(1, 4.0)
    facts = iter([product(100, 10), product(128, 10)])
    stream.events = [
        msgspec.structs.replace(event, facts=next(facts)) if isinstance(event, CandidateLowered) else event
        for event in stream.events
    ]
    stream.add(ReferenceMeasured, device="cpu", timing=timing(2.0))
    return Result.from_events(stream.finished().events)


def test_work_is_the_least_that_any_candidate_does_and_the_same_for_all() -> None:
    """A tile past the problem's end, and a tensor read again, are a candidate's own doing and no work."""
    work = problem_work([product(100, 10), product(128, 10), None, StaticFacts()])
    assert work.flops == 2.0 * 100**3 * 10 and work.bytes == 1_000_000 and work.rate == 1.0


def test_what_the_user_says_of_the_work_wins() -> None:
    result = run(flops=5e8, bytes=2e6)
    assert (result.work.flops, result.work.bytes) == (5e8, 2e6)
    assert result.roofline is not None and result.roofline.gflops_s == 500.0 and result.roofline.gbytes_s == 2.0


def test_the_winner_has_a_roofline() -> None:
    result = run()
    assert result.roofline is not None
    assert result.roofline.compute_share == 0.02  # 2e7 operations in 1 ms, of 1e12 a second
    assert "of the nominal peak" in result.roofline.describe()
    assert summary(result)["roofline"]["bound"] == "compute"


@pytest.mark.parametrize(
    ("flops", "n_bytes", "bound"),
    [(1e9, 1e6, "compute"), (1e6, 5e7, "memory"), (None, 5e8, "cache"), (1e9, None, "compute")],
)
def test_the_slower_peak_is_what_bounds(flops: float | None, n_bytes: float | None, bound: str) -> None:
    found = roofline(1.0, problem_work([], flops, n_bytes), PEAKS)
    assert found is not None and found.bound == bound


@pytest.mark.parametrize(
    ("rate", "line"), [(0.125, "0.125 GFLOP/s"), (757621.3, "757.6 TFLOP/s"), (1000.0, "1 TFLOP/s")]
)
def test_rates_are_written_without_powers_of_ten(rate: float, line: str) -> None:
    assert Roofline(gflops_s=rate).describe() == line
