"""``atune doctor --calibrate``: measure each GPU's peaks and keep them for the rooflines of later runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from atune.cli.doctor import Check
from atune.local.entry_points import CALIBRATE, VISIBLE_GPUS
from atune.local.peaks import nominal_peaks
from atune.model.device import DeviceInfo
from atune.model.roofline import Peaks
from atune.storage.calibration import keep_peaks
from atune.system.device_lock import DeviceLock

TIMEOUT_S = 120.0
"""Time limit for one device, including the start of its process and of its CUDA context."""

_ASK = """
import importlib, json, sys
import msgspec
path, module, name, *where = json.loads(sys.argv[1])
sys.path[:] = path
answer = getattr(importlib.import_module(module), name)(*where)
print(json.dumps(msgspec.to_builtins(answer)))
"""

Ask = Callable[..., Any]


def ask(entry: str, *arguments: Any) -> Any:
    """Call an entry point in its own process and return its answer as data. Raises `OSError` and `ValueError`."""
    module, _, name = entry.partition(":")
    payload = json.dumps([[os.path.abspath(p) for p in sys.path], module, name, *arguments])
    command = [sys.executable, "-c", _ASK, payload]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.SubprocessError as error:
        words = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise ValueError(words[-1] if words else str(error)) from error
    return json.loads(done.stdout.splitlines()[-1])


def calibrate(ask: Ask = ask) -> list[Check]:
    """Measure the visible GPUs one after another and return a finding for each. `ask` calls entry points."""
    try:
        devices = msgspec.convert(ask(VISIBLE_GPUS), list[DeviceInfo])
    except (OSError, ValueError) as error:
        return [Check("calibration", False, f"GPUs cannot be listed: {error}", "atune doctor says what is missing")]
    if not devices:
        return [Check("calibration", False, "there is no GPU", "only GPUs have peaks that can be measured")]
    return [anyio.run(_measured, device, ask, backend="asyncio") for device in devices]


async def _measured(device: DeviceInfo, ask: Ask) -> Check:
    name = f"calibration of GPU {device.id}"
    try:
        async with DeviceLock(device.uuid).held():
            peaks = Peaks(**ask(CALIBRATE, int(device.id)), measured=True)
        keep_peaks(device, peaks)
    except (OSError, ValueError) as error:
        return Check(name, False, f"failed: {error}", "free the device's memory, and try again")
    return Check(name, True, describe(peaks, nominal_peaks(device)))


def describe(peaks: Peaks, nominal: Peaks | None) -> str:
    """Return the measured peaks as text, with their share of the nominal peaks."""
    pairs: Sequence[tuple[str, float, float | None]] = (
        ("TFLOP/s in 16 bits", peaks.flops_s / 1e12, nominal.flops_s / 1e12 if nominal else None),
        ("GB/s", peaks.bytes_s / 1e9, nominal.bytes_s / 1e9 if nominal else None),
    )
    return ", ".join(
        f"{value:,.4g} {unit}" + (f" ({100 * value / most:.0f} % of nominal)" if most else "")
        for unit, value, most in pairs
    )
