"""Measured peaks of devices, stored in the cache folder by UUID and highest clock."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from atune.model.device import DeviceInfo
from atune.model.roofline import Peaks
from atune.system.folders import whole_file
from atune.system.paths import cache_folder, make_private_folder


def find_peaks(device: DeviceInfo) -> Peaks | None:
    """Return the measured peaks of `device`, or None if it was not measured at this clock or the file is unreadable."""
    if not device.uuid:
        return None
    try:
        found = msgspec.json.decode(_file(device).read_bytes(), type=Peaks)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.measured and found.flops_s > 0 and found.bytes_s > 0 else None


def keep_peaks(device: DeviceInfo, peaks: Peaks) -> Path:
    """Store the measured peaks of `device` and return the file's path. Raises `OSError`."""
    path = _file(device)
    make_private_folder(str(path.parent))
    with whole_file(path) as part:
        Path(part).write_bytes(msgspec.json.encode(peaks))
    return path


def _file(device: DeviceInfo) -> Path:
    name = re.sub(r"[^\w-]", "_", device.uuid)
    return cache_folder() / "calibration" / f"{name}-{round(device.clock_hz / 1e6)}MHz.json"
