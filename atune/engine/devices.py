"""Figures of devices for the prior: from NVIDIA's data sheets, overridden by what the device reports.

Other sources are NVIDIA's white papers on the architectures A100 (GA100), GA102, AD102 and H100 (GH100). Rates of
tensor cores are for dense operands, accumulated in float32.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from atune.errors import UsageError
from atune.model.device import (
    MULTIPROCESSORS,
    DeviceInfo,
    DeviceLimits,
    Multiprocessor,
    Target,
    arch_of_capability,
    default_limits,
)
from atune.model.options import meant
from atune.model.roofline import Peaks


class Architecture(NamedTuple):
    """Rates of one multiprocessor (SM) of an architecture."""

    tensor_flops: int
    """Tensor core operations a clock in bfloat16; those of gaming boards, if server boards do more."""
    lanes: int
    """Float32 operations a clock, one for each lane."""
    warp_groups: bool = False
    """Whether groups of four warps multiply with operands in shared memory (wgmma)."""
    tensor_memory: bool = False
    """Whether products may be in tensor memory (tcgen05), where warps need not divide them."""


ARCHITECTURES = {
    "80": Architecture(2048, 64),  # 312 TFLOP/s of 108 at 1.41 GHz
    "86": Architecture(512, 128),  # 71 TFLOP/s of 82 at 1.70 GHz
    "89": Architecture(512, 128),  # 165 TFLOP/s of 128 at 2.52 GHz
    "90": Architecture(4096, 128, True),  # 989 TFLOP/s of 132 at 1.83 GHz
    "100": Architecture(8192, 128, tensor_memory=True),  # 2.25 PFLOP/s of 148 at 1.85 GHz
    "120": Architecture(512, 128),  # 210 TFLOP/s of 170 at 2.41 GHz
}
"""Figures by compute capability. An unknown one uses the next older entry."""


class Sheet(NamedTuple):
    """A board's figures from its data sheet."""

    capability: str
    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes: int
    tensor_flops: int = 0
    """Fields of `Architecture` in which this board differs."""


SHEETS = {
    "H200": Sheet("90", 132, 1.83e9, 4.8e12, 50 << 20),  # «H200 Tensor Core GPU»; the rest as the H100
    "H100 PCIE": Sheet("90", 114, 1.755e9, 2.0e12, 50 << 20),  # «H100 Tensor Core GPU», «H100 Architecture», table 3
    "H100": Sheet("90", 132, 1.83e9, 3.35e12, 50 << 20),
    "A100": Sheet("80", 108, 1.41e9, 2.039e12, 40 << 20),  # «A100 80GB», «A100 Tensor Core GPU Architecture», table 1
    "A10": Sheet("86", 72, 1.695e9, 6.0e11, 6 << 20, 1024),  # «A10 Tensor Core GPU»
    "RTX 3090": Sheet("86", 82, 1.695e9, 9.36e11, 6 << 20),  # «GA102 Architecture», table 2
    "RTX 4090": Sheet("89", 128, 2.52e9, 1.008e12, 72 << 20),  # «Ada GPU Architecture», table 2
    "L40S": Sheet("89", 142, 2.52e9, 8.64e11, 96 << 20, 1024),  # «L40S»
    "L4": Sheet("89", 58, 2.04e9, 3.0e11, 48 << 20, 1024),  # «L4 Tensor Core GPU»
    "B200": Sheet("100", 148, 1.85e9, 8.0e12, 126 << 20),  # «HGX B200», a GPU's share
    "RTX 5090": Sheet("120", 170, 2.41e9, 1.792e12, 96 << 20),  # «Blackwell GPU Architecture», appendix A
}
"""Data sheets by words in a device's name; the first match counts."""
TYPICAL = {"80": "A100", "86": "RTX 3090", "89": "RTX 4090", "90": "H100", "100": "B200", "120": "RTX 5090"}
"""The sheet to use for unknown boards of a compute capability."""


class Figures(msgspec.Struct, frozen=True):
    """A device's figures for the prior. A multiprocessor is an SM."""

    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes: int
    architecture: Architecture
    sm: Multiprocessor
    limits: DeviceLimits
    """Limits of a block."""


def figures_of(device: DeviceInfo | None, arch: str = "") -> Figures | None:
    """Return the figures of `device`; without a device, those of a typical board of `arch`, such as ``sm_90a``.

    What the device reports overrides the sheet. Returns None if it is no CUDA GPU of these architectures.
    """
    device = device or DeviceInfo("", "")
    arch = device.arch or arch
    digits = re.sub(r"\D", "", arch)
    older = [known for known in ARCHITECTURES if digits and int(known) <= int(digits)]
    if not (capability := max(older, key=int, default="")):
        return None
    sheet, architecture = SHEETS[_board(device.name) or TYPICAL[capability]], ARCHITECTURES[capability]
    limits, own = default_limits(Target("cuda", arch)), device.limits
    if sheet.tensor_flops:
        architecture = architecture._replace(tensor_flops=sheet.tensor_flops)
    return Figures(
        sms=device.sms or sheet.sms,
        clock_hz=device.clock_hz or sheet.clock_hz,
        memory_bytes_s=device.memory_bytes_s or sheet.memory_bytes_s,
        l2_bytes=sheet.l2_bytes,
        architecture=architecture,
        sm=MULTIPROCESSORS[capability],
        limits=DeviceLimits(own.smem_bytes or limits.smem_bytes, own.threads or limits.threads),
    )


def device_named(name: str) -> DeviceInfo:
    """Return a board of the table, such as ``H100``, ``H100-PCIe`` or ``rtx4090``. Raises `UsageError`."""
    board = _board(str(name)) or _board(re.sub(r"(?<=[A-Za-z])(?=\d+$)", " ", str(name)))
    if not board:
        raise UsageError(f"gpu {name!r} is not known; known are {', '.join(SHEETS)}{meant(str(name), SHEETS)}")
    major, minor = divmod(int(SHEETS[board].capability), 10)
    return DeviceInfo(id=board, name=board, arch=arch_of_capability(major, minor))


def _board(name: str) -> str:
    """Return the words in `SHEETS` that a device's name contains; empty for a board without a sheet."""
    parts = re.sub(r"[^A-Z0-9]+", " ", name.upper())
    return next((words for words in SHEETS if f" {words} " in f" {parts} "), "")


def with_peaks(device: DeviceInfo) -> DeviceInfo:
    """Return `device` with its peaks by the data sheet: None for an architecture without a sheet.

    Tensor cores count with the sheet's clock, which they hold under load. Memory counts with the device's own figure.
    """
    figures, sheet = figures_of(device), figures_of(msgspec.structs.replace(device, clock_hz=0.0))
    if figures is None or sheet is None:
        return device
    flops_s = float(sheet.sms * sheet.clock_hz * sheet.architecture.tensor_flops)
    return msgspec.structs.replace(device, peaks=Peaks(flops_s=flops_s, bytes_s=figures.memory_bytes_s))
