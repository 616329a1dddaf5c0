"""A machine that was not quiet is named, with what to do; a quiet one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write

from atune.journal.events import Warned
from atune.journal.reader import replay
from atune.journal.result import Result, noise_of
from atune.model.measurement import DISTURBS, Conditions, Timing
from atune.reporting.report import report
from atune.reporting.summary import summary, summary_text


def timed(spread: float = 0.001, method: str = "events", **seen: Any) -> tuple[str, Timing]:
    conditions = Conditions("GPU-1", **seen) if seen else None
    return "0", Timing(1.0, spread, (1000.0,), method, conditions)


def test_samples_that_scatter_more_than_usual_are_reported_with_the_device() -> None:
    [sign] = noise_of([], [timed(0.05), timed(0.04), timed(0.001)])
    assert sign.startswith("the best candidates' samples scatter by 4.0%") and "stop what else runs on device 0" in sign
    [sign] = noise_of([], [timed(0.2, "perf_counter")])
    assert "stop what else runs on the CPU" in sign
    for usual in ([timed(0.03)], [timed(0.09, "perf_counter")], [timed(0.5), *[timed()] * 2]):
        assert noise_of([], usual) == []


def test_clocks_that_moved_or_were_lowered_are_reported_with_their_reasons() -> None:
    quiet = timed(sm_mhz=1980)
    hot = timed(sm_mhz=1500, throttle=("temperature", "application clocks"))
    [sign] = noise_of([quiet, hot, timed(sm_mhz=1980, throttle=("power cap",))], [])
    assert sign.startswith("device 0's clock moved between 1500 and 1980 MHz (power cap, temperature): cool it")
    [sign] = noise_of([timed(sm_mhz=1980, throttle=("power cap",))], [])
    assert sign.startswith("device 0's clock was lowered (power cap): cool it, raise its power limit, or lock it")
    [sign] = noise_of([timed(sm_mhz=1980), timed(sm_mhz=1900)], [])
    assert sign == ("device 0's clock moved between 1900 and 1980 MHz: lock it with nvidia-smi -lgc, then tune again")


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
    assert result.noise == tuple(summary(result)["noise"]) and "scatter" in result.noise[0]
    assert f"\nnoise      {result.noise[0]}" in summary_text(result)
    assert "scatter" not in summary_text(Result.from_events(Stream().candidate(0, 1.0).finished().events))


def test_another_user_of_the_device_is_told_as_noise_and_stands_on_the_page_once(tmp_path: Path) -> None:
    other, rest = f"device 0 is also used by process 7 (python, 9 MiB): that {DISTURBS}; end it", "slower than asked"
    stream = Stream(total=1).add(Warned, message=other).add(Warned, message=rest).candidate(0, 1.0).finished()
    result = Result.from_events(stream.events)
    assert result.noise == (other,)
    assert f"\nwarnings   {rest}\nnoise      {other}" in summary_text(result)
    assert f'"items":["{other}","{rest}"]' in report(write(tmp_path / "j", stream.events))


def test_a_recorded_run_next_to_another_process_names_it() -> None:
    kept = Path(__file__).parents[2] / "bench" / "results" / "conditions"
    shared, alone = (replay(kept / f"{name}.jsonl") for name in ("beside", "alone"))
    assert "is also used by process" in shared.noise[0] and alone.noise == ()
