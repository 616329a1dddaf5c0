"""What the report shows of a run's hosts."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from event_streams import Stream, timing, write

from atune.journal.events import (
    BenchmarkStarted,
    CandidateMeasured,
    DeviceReady,
    RunStarted,
)
from atune.model.device import DeviceInfo
from atune.reporting.page import measured_on
from atune.reporting.report import report


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


def test_the_report_has_the_devices_by_host(tmp_path: Path) -> None:
    stream = on_hosts("b/0", "a/10", "a/9").finished()
    page = report(write(tmp_path / "j.jsonl", stream.events)).replace("<wbr>", "")
    assert "3 × H200, on 2 hosts" in page
    named = re.findall(r'"name":"device ([^"]+)"', page)
    assert named == ["a/9", "a/10", "b/0"]  # a host's devices next to each other


def test_devices_of_one_machine_read_as_before() -> None:
    devices = [DeviceInfo("0", "H200"), DeviceInfo("1", "H200")]
    assert measured_on(devices) == "H200, H200" and measured_on([]) == "no device"
