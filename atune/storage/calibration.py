"""What a device was measured to do at most: kept in the cache folder, by its UUID and its highest clock."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from atune.model.device import DeviceInfo
from atune.model.roofline import Peaks
from atune.system.folders import whole_file
from atune.system.paths import cache_folder, make_private_folder


def find_peaks(device: DeviceInfo) -> Peaks | None:
    """Return what `device` was measured to do; None where it was not, at this clock, or the file cannot be read."""
    if not device.uuid:
        return None
    try:
        found = msgspec.json.decode(_file(device).read_bytes(), type=Peaks)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.measured and found.flops_s > 0 and found.bytes_s > 0 else None


def keep_peaks(device: DeviceInfo, peaks: Peaks) -> Path:
    """Keep what `device` was measured to do, and return where. Raises `OSError`."""
    path = _file(device)
    make_private_folder(str(path.parent))
    with whole_file(path) as part:
        Path(part).write_bytes(msgspec.json.encode(peaks))
    return path


def _file(device: DeviceInfo) -> Path:
    name = re.sub(r"[^\w-]", "_", device.uuid)
    return cache_folder() / "calibration" / f"{name}-{round(device.clock_hz / 1e6)}MHz.json"
