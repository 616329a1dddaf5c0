"""Targets and devices: hard limits, the occupancy of multiprocessors, and device figures that the prior uses.

The figures come from NVIDIA's data sheets, and from its white papers on the architectures A100 (GA100), GA102, AD102
and H100 (GH100). A value that the device itself reports takes precedence. Rates of tensor cores are given for dense
operands and for sums in float32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from atune.errors import TargetError, UsageError
from atune.model.options import meant
from atune.model.ranges import Quantity, Rate, Whole

NO_GPU = "no GPU found: tuning for the CPU"
"""The message that is shown when target ``auto`` falls back to the CPU."""


class Target(msgspec.Struct, frozen=True):
    """A resolved compilation target. `kind`: ``cuda`` or ``c``. `arch`: for example ``sm_90a``; empty for ``c``."""

    kind: Annotated[str, msgspec.Meta(pattern="^(c|cuda)$")]
    arch: Annotated[str, msgspec.Meta(pattern=r"^(sm_\d{2,4}[af]?)?$")] = ""

    def tvm(self) -> str | dict[str, str]:
        """Return the target in the form that tilelang expects."""
        return {"kind": "cuda", "arch": self.arch} if self.kind == "cuda" else "c"

    def __str__(self) -> str:
        return f"cuda ({self.arch})" if self.kind == "cuda" else self.kind


class DeviceLimits(msgspec.Struct, frozen=True):
    """Hard limits that no candidate may exceed. None: no known limit.

    For CUDA, the limits follow from the compute capability (CUDA C++ Programming Guide, table «Technical Specifications
    per Compute Capability»).
    """

    smem_bytes: Whole | None = None
    """Largest number of bytes of shared memory in a block."""
    threads: Whole | None = None


class Peaks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Peak rates of a device."""

    flops_s: Rate
    """Operations per second of the tensor cores, for dense 16-bit operands and sums in float32."""
    bytes_s: Rate
    """Bytes per second that can be read from and written to memory."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device, as seen by the process that uses it."""

    id: str
    """The worker's name: ``cpu``, or the CUDA index of the GPU as a string."""
    name: str
    uuid: str = ""
    arch: str = ""
    memory_bytes: Whole = 0
    limits: DeviceLimits = DeviceLimits()
    sms: Whole = 0
    """Number of working multiprocessors. This field and the next two are 0 unless the device reports them."""
    clock_hz: Quantity = 0.0
    """Highest clock of the multiprocessors, in hertz."""
    memory_bytes_s: Quantity = 0.0
    """Bytes per second that the memory can move at its highest clock."""
    peaks: Peaks | None = None
    """Peak rates for rooflines, measured on the device or taken from its data sheet. None if neither is known."""


def default_limits(target: Target) -> DeviceLimits:
    """Return the limits of a target's architecture."""
    if target.kind != "cuda":
        return DeviceLimits()
    sm = MULTIPROCESSORS.get(re.sub(r"\D", "", target.arch))
    return DeviceLimits(smem_bytes=None if sm is None else (sm.smem_kib - sm.reserved_kib) << 10, threads=1024)


def parse_target(text: Any) -> Target | None:
    """Parse a target: ``c``, ``cuda``, ``sm_90a``, ``cuda -arch=…``, a dict, or ``auto``.

    Returns None for ``auto``, because the machine then chooses the target. For ``cuda`` without an arch, `Target.arch`
    is empty until the device sets it. Raises `TargetError` for a target that atune does not support.
    """
    if text is None or text == "auto":
        return None
    if isinstance(text, Target):
        return text
    if isinstance(text, dict):
        text = f"{text.get('kind', '')} -arch={text.get('arch', '')}"
    text = str(text).strip()
    kind = text.split()[0] if text else ""
    if kind in ("c", "cpu"):
        return Target("c")
    if re.fullmatch(r"sm_\d+[af]?", kind):
        return Target("cuda", _full_arch(kind))
    if kind == "cuda":
        arch = re.search(r"-arch=(sm_\d+[af]?)?", text)
        return Target("cuda", _full_arch(arch.group(1) or "") if arch else "")
    raise TargetError(f"target {kind!r} is not supported: use auto, cuda, an arch (sm_90a: H100, H200), or c (the CPU)")


def device_names(devices: Any) -> tuple[str, ...]:
    """Return devices as strings: ``all``, ``cpu`` or GPU numbers. One string may list several devices: ``0,1``.

    Raises `UsageError` for any other value. Does not check whether the devices exist.
    """
    listed = isinstance(devices, Sequence) and not isinstance(devices, bytes)
    given = map(str.strip, devices.split(",")) if isinstance(devices, str) else devices if listed else ()
    names = tuple(str(name) if type(name) is int else name for name in given)
    if not names or not all(isinstance(n, str) and (n in ("all", "cpu") or re.fullmatch(r"\d+", n)) for n in names):
        raise UsageError(f"devices: give 'all', 'cpu' or device numbers such as [0, 1], got {devices!r}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"device {twice[0]} is given twice: give it once")
    return names


def _full_arch(arch: str) -> str:
    # Hopper and Blackwell kernels use architecture-specific instructions (setmaxnreg, wgmma), so plain sm_90 fails.
    return arch + "a" if arch in ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121") else arch


def arch_of_capability(major: int, minor: int) -> str:
    """Return the arch for a compute capability, such as ``sm_90a`` for (9, 0)."""
    return _full_arch(f"sm_{major}{minor}")


class Multiprocessor(msgspec.Struct, frozen=True):
    """Resources that a multiprocessor divides among blocks (from the same table as `DeviceLimits`)."""

    threads: int
    blocks: int
    smem_kib: int
    reserved_kib: int = 1
    """KiB of shared memory per block that the system itself uses."""
    registers: int = 65536


MULTIPROCESSORS = {
    capability: Multiprocessor(*figures)
    for capability, figures in {
        "70": (2048, 32, 96, 0), "72": (2048, 32, 96, 0), "75": (1024, 16, 64, 0), "80": (2048, 32, 164),
        "86": (1536, 16, 100), "87": (1536, 16, 164), "89": (1536, 24, 100), "90": (2048, 32, 228),
        "100": (2048, 32, 228), "103": (2048, 32, 228), "110": (1536, 24, 228), "120": (1536, 24, 100),
        "121": (1536, 24, 100),
    }.items()
}  # fmt: skip


class Occupancy(msgspec.Struct, frozen=True):
    """The number of blocks that fit on a multiprocessor at the same time, and which of ``threads``, ``registers``,
    ``smem`` and ``blocks`` limit this number."""

    blocks: int
    limits: tuple[str, ...]


def occupancy_of(arch: str, threads: int, registers: int, smem_bytes: int) -> Occupancy | None:
    """Return a kernel's occupancy on `arch`, such as ``sm_90a``; None if the architecture is unknown.

    `threads`: per block. `registers`: per thread. `smem_bytes`: static and dynamic shared memory per block. The formula
    comes from ``cuda_occupancy.h`` in the CUDA toolkit. A warp gets registers in units of 256, from one of the four
    partitions of the register file. A block gets shared memory in units of 128 bytes.
    """
    sm = MULTIPROCESSORS.get(re.sub(r"\D", "", arch))
    if sm is None or threads < 1:
        return None
    warps = -(-threads // 32)
    warp_registers = _round_up(registers * 32, 256)
    resident_warps = sm.registers // 4 // warp_registers * 4 if warp_registers else sm.threads // 32
    block_bytes = _round_up(smem_bytes + (sm.reserved_kib << 10), 128)
    room = {
        "threads": sm.threads // 32 // warps,
        "registers": resident_warps // warps,
        "smem": (sm.smem_kib << 10) // block_bytes if block_bytes else sm.blocks,
        "blocks": sm.blocks,
    }
    blocks = min(room.values())
    return Occupancy(blocks, tuple(name for name, fitting in room.items() if fitting == blocks))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# ---- figures from data sheets, unless a device reports its own


class Architecture(NamedTuple):
    """Rates of a multiprocessor (SM) in an architecture."""

    tensor_flops: int
    """bfloat16 operations of the tensor cores per clock. Some server boards reach a higher number (see `SHEETS`)."""
    lanes: int
    """float32 operations per clock, one for each lane."""
    warp_groups: bool = False
    """Whether four warps together can multiply operands in shared memory (wgmma)."""
    tensor_memory: bool = False
    """Whether products can be in tensor memory (tcgen05), where they need not be divided among warps."""


ARCHITECTURES = {
    "80": Architecture(2048, 64),  # 312 TFLOP/s of 108 SMs at 1.41 GHz
    "86": Architecture(512, 128),  # 71 TFLOP/s of 82 SMs at 1.70 GHz
    "89": Architecture(512, 128),  # 165 TFLOP/s of 128 SMs at 2.52 GHz
    "90": Architecture(4096, 128, True),  # 989 TFLOP/s of 132 SMs at 1.83 GHz
    "100": Architecture(8192, 128, tensor_memory=True),  # 2.25 PFLOP/s of 148 SMs at 1.85 GHz
    "120": Architecture(512, 128),  # 210 TFLOP/s of 170 SMs at 2.41 GHz
}
"""Figures by compute capability. For an unknown capability, the entry of the next older capability is used."""


class Sheet(NamedTuple):
    """Figures from the data sheet of a board."""

    capability: str
    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes: int
    tensor_flops: int = 0
    """The board's own value of `Architecture.tensor_flops`; 0 if the architecture's value applies."""


SHEETS = {
    "H200": Sheet("90", 132, 1.83e9, 4.8e12, 50 << 20),  # «H200 Tensor Core GPU»; other figures as for the H100
    "H100 PCIE": Sheet("90", 114, 1.755e9, 2.0e12, 50 << 20),  # «H100 Tensor Core GPU», «H100 Architecture», table 3
    "H100": Sheet("90", 132, 1.83e9, 3.35e12, 50 << 20),
    "A100": Sheet("80", 108, 1.41e9, 2.039e12, 40 << 20),  # «A100 80GB», «A100 Tensor Core GPU Architecture», table 1
    "A10": Sheet("86", 72, 1.695e9, 6.0e11, 6 << 20, 1024),  # «A10 Tensor Core GPU»
    "RTX 3090": Sheet("86", 82, 1.695e9, 9.36e11, 6 << 20),  # «GA102 Architecture», table 2
    "RTX 4090": Sheet("89", 128, 2.52e9, 1.008e12, 72 << 20),  # «Ada GPU Architecture», table 2
    "L40S": Sheet("89", 142, 2.52e9, 8.64e11, 96 << 20, 1024),  # «L40S»
    "L4": Sheet("89", 58, 2.04e9, 3.0e11, 48 << 20, 1024),  # «L4 Tensor Core GPU»
    "B200": Sheet("100", 148, 1.85e9, 8.0e12, 126 << 20),  # «HGX B200», one GPU's share
    "RTX 5090": Sheet("120", 170, 2.41e9, 1.792e12, 96 << 20),  # «Blackwell GPU Architecture», appendix A
}
"""Data sheets, by words in a device's name. If several entries match, the first entry is used."""
TYPICAL = {"80": "A100", "86": "RTX 3090", "89": "RTX 4090", "90": "H100", "100": "B200", "120": "RTX 5090"}
"""For each compute capability, the typical board, whose data sheet is used for boards without a data sheet."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of a device that the prior uses."""

    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes: int
    architecture: Architecture
    sm: Multiprocessor
    limits: DeviceLimits


def figures_of(device: DeviceInfo | None, arch: str = "") -> Figures | None:
    """Return the figures of `device`, or of a typical board of `arch` (such as ``sm_90a``) if there is no device.

    A value that the device reports takes precedence over the data sheet. Returns None for other architectures.
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
    """Return a board by its name, such as ``H100``, ``H100-PCIe`` or ``rtx4090``. Raises `UsageError` if unknown."""
    board = _board(str(name)) or _board(re.sub(r"(?<=[A-Za-z])(?=\d+$)", " ", str(name)))
    if not board:
        raise UsageError(f"gpu {name!r} is not known; known are {', '.join(SHEETS)}{meant(str(name), SHEETS)}")
    major, minor = divmod(int(SHEETS[board].capability), 10)
    return DeviceInfo(id=board, name=board, arch=arch_of_capability(major, minor))


def _board(name: str) -> str:
    """Return the key of `SHEETS` that a device's name contains; empty if the board has no data sheet."""
    parts = re.sub(r"[^A-Z0-9]+", " ", name.upper())
    return next((words for words in SHEETS if f" {words} " in f" {parts} "), "")


def with_peaks(device: DeviceInfo) -> DeviceInfo:
    """Return `device` with the peaks from its data sheet; unchanged if its architecture has no data sheet.

    Tensor cores are assumed to run at the sheet's clock, as they do under load. The device's own memory rate is used.
    """
    figures, sheet = figures_of(device), figures_of(msgspec.structs.replace(device, clock_hz=0.0))
    if figures is None or sheet is None:
        return device
    flops_s = float(sheet.sms * sheet.clock_hz * sheet.architecture.tensor_flops)
    return msgspec.structs.replace(device, peaks=Peaks(flops_s=flops_s, bytes_s=figures.memory_bytes_s))
