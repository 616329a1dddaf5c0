"""What a result says beyond its figures: noise of the machine, the peaks of its device, and axes that mattered."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write
from msgspec.structs import replace

from atune.journal.events import Warned
from atune.journal.reader import read
from atune.journal.result import Result, noise_of
from atune.model.artifact import Access, BlockWork, Gemm, StaticFacts
from atune.model.device import Peaks
from atune.model.measurement import DISTURBS, Conditions, ProblemWork, Roofline, Timing
from atune.reporting.importance import LEAST_POINTS, Importance, importance_of
from atune.reporting.report import report
from atune.reporting.summary import summary, summary_text

STORED = Path(__file__).parents[2] / "bench" / "results"


def timed(spread: float = 0.001, method: str = "events", **seen: Any) -> tuple[str, Timing]:
    conditions = Conditions("GPU-1", **seen) if seen else None
    return "0", Timing(1.0, spread, (1000.0,), method, conditions)


def test_a_timing_is_printed_without_its_samples_and_its_latency_without_noise() -> None:
    timing = Timing.of([232.872] * 200, "events")
    assert repr(timing) == "Timing(0.2329 ms, spread 0.0%, 200 samples by events)"
    assert str(timing.latency_ms) == "0.232872"


def test_samples_that_scatter_more_than_usual_are_reported_with_the_device() -> None:
    [sign] = noise_of([], [timed(0.05), timed(0.04), timed(0.001)])
    assert sign.startswith("the best candidates' samples vary by 4 %") and "Stop other programs on device 0" in sign
    [sign] = noise_of([], [timed(0.2, "perf_counter")])
    assert "Stop other programs on the CPU" in sign
    for usual in ([timed(0.03)], [timed(0.09, "perf_counter")], [timed(0.5), *[timed()] * 2]):
        assert noise_of([], usual) == []


def test_clocks_that_moved_or_were_lowered_are_reported_with_their_reasons() -> None:
    quiet = timed(sm_mhz=1980)
    hot = timed(sm_mhz=1500, throttle=("temperature", "application clocks"))
    [sign] = noise_of([quiet, hot, timed(sm_mhz=1980, throttle=("power cap",))], [])
    moved = "the clock of device 0 varied between"
    assert sign.startswith(f"{moved} 1500 and 1980 MHz (power cap, temperature). Cool the GPU")
    [sign] = noise_of([timed(sm_mhz=1980, throttle=("power cap",))], [])
    do = "Cool the GPU, raise its power limit, or lock the clock"
    assert sign.startswith(f"the clock of device 0 was lowered (power cap). {do}")
    [sign] = noise_of([timed(sm_mhz=1980), timed(sm_mhz=1900)], [])
    assert sign == f"{moved} 1900 and 1980 MHz. Lock the clock with nvidia-smi -lgc, and tune again"


@pytest.mark.parametrize(
    "other",
    [timed(sm_mhz=1965), timed(), timed(sm_mhz=1980, throttle=("application clocks",)), ("1", timed(sm_mhz=900)[1])],
    ids=["a little", "unknown", "set by somebody", "another device"],
)
def test_clocks_that_stand_are_not_reported(other: tuple[str, Timing]) -> None:
    assert noise_of([timed(sm_mhz=1980), other], []) == []


def test_a_noisy_run_says_so_in_its_summary_and_its_json() -> None:
    wide = [1.0, 2.0] * 5
    stream = Stream(total=3).candidate(0, 1.0).candidate(1, 1.1).candidate(2, 9.0)
    result = Result.from_events(stream.final({0: wide, 1: wide[::-1], 2: [9.0] * 2}).finished().events)
    assert result.noise == tuple(summary(result)["noise"]) and "samples vary" in result.noise[0]
    assert f"\nnoise      {result.noise[0]}" in summary_text(result)
    assert "samples vary" not in summary_text(Result.from_events(Stream().candidate(0, 1.0).finished().events))


def test_another_user_of_the_device_is_told_as_noise_and_stands_on_the_page_once(tmp_path: Path) -> None:
    other, rest = f"device 0 is also used by process 7 (python, 9 MiB), which {DISTURBS}; end it", "slower than asked"
    stream = Stream(total=1).add(Warned, message=other).add(Warned, message=rest).candidate(0, 1.0).finished()
    result = Result.from_events(stream.events)
    assert result.noise == (other,)
    assert f"\nwarnings   {rest}\nnoise      {other}" in summary_text(result)
    assert f'"items":["{other}","{rest}"]' in report(write(tmp_path / "j", stream.events))


def test_work_is_the_least_that_any_candidate_does_and_the_same_for_all() -> None:
    """A tile past the problem's end, and a tensor read again, are a candidate's own doing and no work."""

    def of_block(m: int) -> StaticFacts:
        gemm = Gemm(m=m, n=100, k=100, calls=1.0, dtype="bfloat16")
        work = BlockWork(gemms=(gemm,), reads=(Access(n_bytes=1e9),), tensor_bytes=1_000_000)
        return StaticFacts(grid=(10, 1, 1), work=work)

    work = ProblemWork.of([of_block(100), of_block(128), None, StaticFacts()])
    assert work.flops == 2.0 * 100**3 * 10 and work.bytes == 1_000_000 and work.rate == 1.0


def test_the_winner_has_a_roofline_of_the_work_that_the_user_gave_or_that_was_found() -> None:
    header, *events = read(STORED / "layouts" / "uneven.jsonl")
    found = Result.from_events([header, *events])
    assert summary(found)["roofline"]["bound"] == "memory" and found.roofline is not None
    assert found.roofline.describe() == "3.246 TB/s (67 % of the nominal peak), bound by memory"
    given = Result.from_events([replace(header, flops=5e8, bytes=2e6), *events])
    assert (given.work.flops, given.work.bytes) == (5e8, 2e6) and given.roofline is not None
    assert given.roofline.gflops_s == pytest.approx(5e8 / (given.latency_ms or 0.0) / 1e6, rel=1e-5)


@pytest.mark.parametrize(
    ("flops", "n_bytes", "bound"),
    [(1e9, 1e6, "compute"), (1e6, 5e7, "memory"), (None, 5e8, "cache"), (1e9, None, "compute")],
)
def test_the_slower_peak_is_what_bounds(flops: float | None, n_bytes: float | None, bound: str) -> None:
    found = Roofline.of(1.0, ProblemWork.of([], flops, n_bytes), Peaks(flops_s=1e12, bytes_s=1e11))
    assert found is not None and found.bound == bound


Points = list[tuple[dict[str, Any], float]]


def grid(log_latency: Any, repeats: int = 1, **axes: list[Any]) -> Points:
    """Return every combination with its latency, `repeats` times."""
    configs = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] * repeats
    return [(config, math.exp(log_latency(**config))) for config in configs]


def found(points: Points) -> Importance:
    importance = importance_of(points)
    assert importance is not None
    return importance


def test_axes_that_add_up_explain_what_they_vary() -> None:
    """The variance of 0, 1, 2 is 2/3, that of 0, 0.5 is 1/16; c changes nothing."""
    points = grid(lambda a, b, c: a + b, 3, a=[0, 1, 2], b=[0, 0.5], c=["x", "y"])
    importance = found(points)
    total = 2 / 3 + 1 / 16
    assert importance.shares == pytest.approx({"a": 2 / 3 / total, "b": 1 / 16 / total, "c": 0.0}, abs=1e-3)
    assert list(importance.shares) == ["a", "b", "c"] and importance.candidates == 36
    assert importance.describe() == ("a 91 %, b 9 %; combinations, other axes and noise 0 % (from 36 candidates)")


def test_what_only_a_combination_decides_is_no_axis_by_itself() -> None:
    importance = found(grid(lambda a, b: float(a == b), 6, a=[0, 1], b=[0, 1]))
    assert importance.shares == {"a": 0.0, "b": 0.0} and importance.unexplained == 1.0
    assert importance.describe() == ""


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_taken_for_an_axis(seed: int) -> None:
    """Eight levels explain a fifth of the variance of 40 random figures by chance."""
    draw = random.Random(seed)
    points = grid(lambda a, b: draw.gauss(0, 1), a=list(range(8)), b=list(range(5)))
    assert sum(found(points).shares.values()) < 0.35
    many = grid(lambda a, b: draw.gauss(0, 1), 50, a=list(range(8)), b=list(range(5)))
    assert sum(found(many).shares.values()) < 0.02


def test_an_axis_that_follows_another_by_chance_of_the_search_is_not_credited() -> None:
    """Searches try the good values of one axis mostly with one value of another, which does nothing itself."""
    points = grid(lambda a, b: float(a), 1, a=[0, 1, 2, 3], b=[0, 1, 2, 3])
    points += grid(lambda a, b: float(a), 10, a=[0], b=[3])
    importance = found(points)
    assert importance.shares["a"] > 0.95 and importance.shares["b"] < 0.01


def test_too_few_candidates_say_nothing() -> None:
    points = grid(lambda a, b: a + b, 10, a=[0, 1], b=[0, 1])
    assert importance_of(points[: LEAST_POINTS - 1]) is None and importance_of(points[:LEAST_POINTS]) is not None
    many_values: Points = [({"a": i}, 1.0 + i) for i in range(40)]
    assert importance_of(many_values) is None
    assert importance_of([({"a": 1}, 1.0 + i) for i in range(40)]) is None
    assert importance_of([]) is None


def test_names_that_some_configurations_lack_and_lists_are_values_like_others() -> None:
    points: Points = [({"flags": ["-O2"]} if i % 2 else {}, 1.0 + i % 2) for i in range(40)]
    importance = found(points)
    assert importance.shares == {"flags": 1.0} and importance.candidates == 40
