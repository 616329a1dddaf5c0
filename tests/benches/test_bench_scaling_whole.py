"""`bench/scaling_whole.py`: its runs, and the share of time in which devices waited."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import scaling_whole
from event_streams import Stream, timing
from rounds import Run, read_journal, waited

from atune.journal.events import BenchmarkFailed, BenchmarkStarted, CandidateMeasured
from atune.journal.result import Result
from atune.journal.writer import write_journal
from atune.reporting.summary import summary


def test_each_budget_runs_on_one_device_and_on_several() -> None:
    found = {one.label: " ".join(one.arguments) for one in scaling_whole.variants_of(["0", "1"], "")}
    assert found == {
        "1 device, all": "--devices 0", "2 devices, all": "--devices 0,1",
        "1 device, 5%": "--devices 0 --budget 5%", "2 devices, 5%": "--devices 0,1 --budget 5%",
    }  # fmt: skip
    assert [one.label for one in scaling_whole.variants_of(list("01234567"), "5%")][2:] == [
        "4 devices, 5%",
        "8 devices, 5%",
    ]
    with pytest.raises(SystemExit, match="'half' is unknown"):
        scaling_whole.variants_of(["0"], "half")


def test_devices_that_have_nothing_to_measure_wait(tmp_path: Path) -> None:
    """Two devices, ten seconds from the first begin to the last end: one measures for two seconds, one for three."""
    stream = Stream(total=2)
    stream.events[0] = msgspec.structs.replace(stream.events[0], devices=("0", "1"))
    for mono, kind, more in (
        (5.0, BenchmarkStarted, {"index": 0, "device": "0"}),
        (7.0, CandidateMeasured, {"index": 0, "device": "0", "timing": timing(1.0), "checked": True}),
        (12.0, BenchmarkStarted, {"index": 1, "device": "1"}),
        (15.0, BenchmarkFailed, {"index": 1, "device": "1", "kind": "fault", "message": "trap"}),
    ):
        stream.mono = mono
        stream.add(kind, **more)
    write_journal(str(tmp_path / "j.jsonl"), stream.events)
    run = Run(space="s", variant="2 devices, all")
    read_journal(run, tmp_path / "j.jsonl", 1.7e9 - 3.0)
    run.stages = summary(Result.from_events(stream.events))["stages"]
    assert (run.devices, run.measuring_s) == (2, 10.0) and waited(run) == pytest.approx(0.75)
    assert waited(Run(space="s", variant="v")) is None


def test_the_table_has_the_ratio_to_one_device() -> None:
    def one(variant: str, result_s: float, devices: int, busy_s: float) -> Run:
        stages = {"compile_wall_s": result_s - 10, "benchmark_s": busy_s}
        figures = {"result_s": result_s, "measuring_s": 40.0, "stages": stages, "devices": devices}
        return Run(space="s", variant=variant, latency_ms=0.2, outcomes={"measured": 1100}, **figures)

    runs = [one("1 device, all", 60.0, 1, 30.0), one("2 devices, all", 54.0, 2, 32.0)]
    runs.append(Run(space="s", variant="1 device, 5%", error="exit status 1: it broke"))
    machine = {"gpu": "two GPUs", "cores": 16}
    text = scaling_whole.markdown({"command": "c", "machine": machine, "stopped": "late", "rounds": 1}, runs)
    assert "| 1 device, all | 1 | 60.00 | 1.000 | 50.00 | 40.00 | 25 % | 1100 | 0 | 0.2000 |" in text
    assert "| 2 devices, all | 1 | 54.00 | 0.900 | 44.00 | 40.00 | 60 % | 1100 | 0 | 0.2000 |" in text
    assert "1 device, 5%: exit status 1: it broke" in text and "**Not all of 1 rounds: late.**" in text
