"""The hosts of a run's devices: what progress, `watch` and the report show of them where there are several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atune.journal.events import (
    BenchmarkFailed,
    CandidateMeasured,
    DeviceLost,
    DeviceReady,
    Event,
    RunResumed,
    RunStarted,
)
from atune.model.device import DeviceInfo

MOST = 4
"""Most hosts whose candidates progress counts each; of more it names the lost ones."""


def host_of(device: str) -> str:
    """Return the host in a device's id, such as ``node-0`` of ``node-0/1``; empty on one machine."""
    return device.rpartition("/")[0]


class Hosts:
    """Counts what each host of a run's latest part measured. A host is lost once all its devices are given up."""

    def __init__(self) -> None:
        self._living: dict[str, set[str]] = {}
        self._measured: Counter[str] = Counter()

    def on_event(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case RunStarted():
                for device in event.devices:
                    self._living.setdefault(host_of(device), set()).add(device)
            case RunResumed():
                self._living.clear()  # this part may be elsewhere; its devices are known once they are ready
            case DeviceReady():
                self._living.setdefault(host_of(event.device.id), set()).add(event.device.id)
            case DeviceLost(final=True):
                self._living.setdefault(host_of(event.device), set()).discard(event.device)
            case CandidateMeasured() | BenchmarkFailed():
                self._measured[host_of(event.device)] += 1

    @property
    def text(self) -> str:
        """The hosts with the candidates that each measured, failures included. Empty where there is one."""
        if len(self._living) < 2:
            return ""
        lost = sorted(host for host, devices in self._living.items() if not devices)
        if len(self._living) > MOST:
            return f"{len(self._living)} hosts" + (f", lost: {', '.join(lost)}" if lost else "")
        counts = (f"{host} {self._measured[host]}{' (lost)' * (host in lost)}" for host in sorted(self._living))
        return f"{len(self._living)} hosts: {', '.join(counts)} measured"


def measured_on(devices: Sequence[DeviceInfo]) -> str:
    """Return the devices' models for a heading: each with its count, and on how many hosts where there are several."""
    hosts = {host_of(device.id) for device in devices}
    if len(hosts) < 2:
        return ", ".join(device.name for device in devices) or "no device"
    counts = Counter(device.name for device in devices)
    return f"{', '.join(f'{count} × {name}' for name, count in counts.items())}, on {len(hosts)} hosts"
