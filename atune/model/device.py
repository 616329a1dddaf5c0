"""Targets, devices, their hard limits, and how many blocks of a kernel a multiprocessor holds at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from atune.errors import TargetError, UsageError
from atune.model.ranges import Quantity, Whole
from atune.model.roofline import Peaks

NO_GPU = "no GPU found: tuning for the CPU"
"""Message if ``auto`` falls back to the CPU."""


class Target(msgspec.Struct, frozen=True):
    """A resolved compilation target. `kind` is ``cuda`` or ``c``. `arch` is, for example, ``sm_90a``; empty for
    ``c``."""

    kind: Annotated[str, msgspec.Meta(pattern="^(c|cuda)$")]
    arch: Annotated[str, msgspec.Meta(pattern=r"^(sm_\d{2,4}[af]?)?$")] = ""

    def tvm(self) -> str | dict[str, str]:
        """Return it as a target string for tilelang."""
        return {"kind": "cuda", "arch": self.arch} if self.kind == "cuda" else "c"

    def __str__(self) -> str:
        return f"cuda ({self.arch})" if self.kind == "cuda" else self.kind


class DeviceLimits(msgspec.Struct, frozen=True):
    """Hard limits that a candidate must fit. None: no known limit.

    CUDA's figures are those of the compute capability, from the CUDA C++ Programming Guide, table «Technical
    Specifications per Compute Capability».
    """

    smem_bytes: Whole | None = None
    """Shared memory that a thread block may use, bytes."""
    threads: Whole | None = None
    """Threads that a block may have."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """One device as its own process sees it."""

    id: str
    """``cpu``, or the CUDA index as a string: the worker's name."""
    name: str
    uuid: str = ""
    arch: str = ""
    memory_bytes: Whole = 0
    limits: DeviceLimits = DeviceLimits()
    sms: Whole = 0
    """Working multiprocessors. This and the following fields come from the device; 0 if it does not report them."""
    clock_hz: Quantity = 0.0
    """The highest clock of its multiprocessors."""
    memory_bytes_s: Quantity = 0.0
    """Bytes per second of its memory at the highest clock."""
    peaks: Peaks | None = None
    """Peaks for rooflines: measured on it, or from the data sheet; None if neither is known."""


FASTEST_TYPE, ABOVE_THE_SHEET = 4, 1.2
"""The rate of the fastest operands, of 4 bits, over that of 16 bits. How far a board may go beyond its data sheet: an
H200 at 1980 MHz does by 8 %, and boards of one name differ."""


def fastest_ms(device: DeviceInfo, flops: float | None, n_bytes: float | None) -> float | None:
    """Return the latency that `device` cannot undercut for this work; None if its peaks are unknown."""
    if device.peaks is None or not (flops or n_bytes):
        return None
    peaks = (FASTEST_TYPE * device.peaks.flops_s, device.peaks.bytes_s)
    return max((work or 0) / (ABOVE_THE_SHEET * peak) for work, peak in zip((flops, n_bytes), peaks, strict=True)) * 1e3


def default_limits(target: Target) -> DeviceLimits:
    """Return the limits of `target`'s architecture."""
    if target.kind != "cuda":
        return DeviceLimits()
    sm = MULTIPROCESSORS.get(re.sub(r"\D", "", target.arch))
    return DeviceLimits(smem_bytes=None if sm is None else (sm.smem_kib - sm.reserved_kib) << 10, threads=1024)


def parse_target(text: Any) -> Target | None:
    """Read a target: ``auto`` (None: the machine decides), ``c``, ``cuda``, ``sm_90a``, ``cuda -arch=…`` or a dict.

    ``cuda`` without an arch leaves `Target.arch` empty; the device fills it in. Raises `TargetError`, naming the
    target, if it is not supported.
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
    """Return devices as texts: ``all``, ``cpu`` and numbers of GPUs, which may be given as ints, or in a text: ``0,1``.

    Raises `UsageError` for anything else. It does not check whether the devices exist.
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
    # Hopper and Blackwell kernels need the architecture-specific set (setmaxnreg, wgmma): plain sm_90 fails.
    return arch + "a" if arch in ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121") else arch


def arch_of_capability(major: int, minor: int) -> str:
    """Return the arch string for a compute capability, such as ``sm_90a`` for (9, 0)."""
    return _full_arch(f"sm_{major}{minor}")


class Multiprocessor(msgspec.Struct, frozen=True):
    """Resources of a multiprocessor for its blocks (CUDA C++ Programming Guide, «Technical Specifications per Compute
    Capability»)."""

    threads: int
    blocks: int
    smem_kib: int
    reserved_kib: int = 1
    """Shared memory of each block that the system uses."""
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
"""Resources by compute capability."""


class Occupancy(msgspec.Struct, frozen=True):
    """Number of resident blocks of a multiprocessor, and its limits: those of ``threads``, ``registers``, ``smem`` and
    ``blocks`` that allow no more."""

    blocks: int
    limits: tuple[str, ...]


def occupancy_of(arch: str, threads: int, registers: int, smem_bytes: int) -> Occupancy | None:
    """Return a kernel's occupancy on `arch`, such as ``sm_90a``; None for an unknown architecture.

    `threads`, `smem_bytes`: of a block, static and dynamic; `registers`: of a thread. The formula is from
    ``cuda_occupancy.h`` of the CUDA toolkit. Warps get registers in units of 256, from the four partitions of the
    register file. Blocks get shared memory in units of 128 bytes.
    """
    sm = MULTIPROCESSORS.get(re.sub(r"\D", "", arch))
    if sm is None or threads < 1:
        return None
    warps = -(-threads // 32)
    of_a_warp = _up(registers * 32, 256)
    resident_warps = sm.registers // 4 // of_a_warp * 4 if of_a_warp else sm.threads // 32
    of_a_block = _up(smem_bytes + (sm.reserved_kib << 10), 128)
    room = {
        "threads": sm.threads // 32 // warps,
        "registers": resident_warps // warps,
        "smem": (sm.smem_kib << 10) // of_a_block if of_a_block else sm.blocks,
        "blocks": sm.blocks,
    }
    blocks = min(room.values())
    return Occupancy(blocks, tuple(name for name, fitting in room.items() if fitting == blocks))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
