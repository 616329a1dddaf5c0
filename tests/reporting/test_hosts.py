"""What progress, `watch` and the report show of a run's hosts."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from event_streams import Stream, timing, write

from atune.journal.events import (
    BenchmarkStarted,
    CandidateMeasured,
    DeviceLost,
    DeviceReady,
    RunStarted,
    Warned,
)
from atune.model.device import DeviceInfo
from atune.reporting.hosts import measured_on
from atune.reporting.progress import Progress
from atune.reporting.report import report

LOSS = "node b was lost: it did not answer for 30 s. 1 of 2 nodes are left"


def on_hosts(*devices: str) -> Stream:
    """Return a run that has measured a candidate on each of `devices`."""
    stream = Stream(total=8)
    stream.events[0] = msgspec.structs.replace(stream.events[0], devices=devices)
    assert isinstance(stream.events[0], RunStarted)
    for device in devices:
        stream.add(DeviceReady, device=DeviceInfo(device, "H200"))
    for index, device in enumerate(devices):
        stream.proposed(index, block=index).lowered(index).built(index)
        stream.add(BenchmarkStarted, index=index, device=device)
        stream.add(CandidateMeasured, index=index, device=device, timing=timing(2.0 - index / 10), checked=True)
    return stream


def lost(stream: Stream, *devices: str) -> Stream:
    stream.add(Warned, message=LOSS)
    for device in devices:
        stream.add(DeviceLost, device=device, reason=LOSS, final=True)
    return stream


def lines(stream: Stream) -> list[str]:
    out = io.StringIO()
    with Progress(out, interval_s=0.0) as progress:
        for event in stream.events:
            progress.on_event(event)
    return out.getvalue().splitlines()


def test_progress_counts_what_each_host_measured() -> None:
    assert "; tried 3 of 8; 2 hosts: a 2, b 1 measured" in lines(on_hosts("a/0", "a/1", "b/0"))[-1]
    assert "hosts" not in lines(on_hosts("0", "1"))[-1] + lines(on_hosts("a/0", "a/1"))[-1]


def test_the_loss_of_a_host_is_one_line_and_stays_in_sight() -> None:
    text = lines(lost(on_hosts("a/0", "b/0", "b/1"), "b/0", "b/1"))
    assert [line for line in text if "was lost" in line] == [f"atune: warning: {LOSS}"]
    assert "2 hosts: a 1, b 2 (lost) measured" in text[-1]
    assert "(lost)" not in lines(lost(on_hosts("a/0", "b/0", "b/1"), "b/0"))[-1]  # one device of two


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (on_hosts("0"), None),
        (lost(on_hosts("a/0", "b/0"), "a/0", "b/0"), "2 hosts: a 1, c 0 measured"),
    ],
    ids=["this machine", "other hosts"],
)
def test_a_run_that_is_resumed_elsewhere_counts_the_hosts_of_its_latest_part(before: Stream, text: str | None) -> None:
    before.interrupted().resumed()
    for device in ("c/0",) if text is None else ("a/0", "c/0"):
        before.add(DeviceReady, device=DeviceInfo(device, "H200"))
    last = lines(before)[-1]
    assert "hosts" not in last if text is None else f"; {text}" in last


def test_many_hosts_are_counted_and_those_lost_are_named() -> None:
    devices = [f"h{number}/0" for number in range(6)]
    assert re.search(r"; 6 hosts$", lines(on_hosts(*devices))[-1].partition(", about")[0])
    assert "; 6 hosts, lost: h3" in lines(lost(on_hosts(*devices), "h3/0"))[-1]


def test_the_report_has_the_devices_by_host(tmp_path: Path) -> None:
    stream = on_hosts("b/0", "a/10", "a/9").finished()
    page = report(write(tmp_path / "j.jsonl", stream.events)).replace("<wbr>", "")
    assert "3 × H200, on 2 hosts" in page
    named = re.findall(r'"name":"device ([^"]+)"', page)
    assert named == ["a/9", "a/10", "b/0"]  # a host's devices next to each other


def test_devices_of_one_machine_read_as_before() -> None:
    devices = [DeviceInfo("0", "H200"), DeviceInfo("1", "H200")]
    assert measured_on(devices) == "H200, H200" and measured_on([]) == "no device"
