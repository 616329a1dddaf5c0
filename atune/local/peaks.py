"""A device's peaks: measured, or else from its data sheet."""

from __future__ import annotations

import msgspec

from atune.model.device import DeviceInfo
from atune.model.roofline import Peaks
from atune.search.devices import figures_of
from atune.storage.calibration import find_peaks


def with_peaks(device: DeviceInfo) -> DeviceInfo:
    """Return `device` with its peaks: None for an unknown architecture. May read a small file."""
    peaks = find_peaks(device) or nominal_peaks(device)
    return msgspec.structs.replace(device, peaks=peaks)


def nominal_peaks(device: DeviceInfo) -> Peaks | None:
    """Return the data sheet's figures, or None for an architecture without a sheet.

    Tensor cores count with the sheet's clock, which they hold under load. Memory counts with the device's own figure.
    """
    figures = figures_of(device)
    sheet = figures_of(msgspec.structs.replace(device, clock_hz=0.0))
    if figures is None or sheet is None:
        return None
    flops_s = float(sheet.sms * sheet.clock_hz * sheet.architecture.tensor_flops)
    return Peaks(flops_s=flops_s, bytes_s=figures.memory_bytes_s)
