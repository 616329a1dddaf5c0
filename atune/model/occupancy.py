"""How many blocks of a kernel a multiprocessor holds at once, and what limits them."""

from __future__ import annotations

import re

import msgspec


class MachineFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel's use of the machine, known after compiling. If a candidate has several kernels, the largest figures."""

    registers: int = 0
    """32-bit registers of a thread."""
    stack_bytes: int = 0
    """Local memory of a thread: arrays outside of registers, and spills."""
    code_bytes: int = 0
    """Machine code of all its kernels."""
    static_smem_bytes: int = 0
    """Shared memory of a block that the launch does not request."""


class Multiprocessor(msgspec.Struct, frozen=True):
    """Resources of a multiprocessor for its blocks (CUDA C++ Programming Guide, «Technical Specifications per Compute
    Capability»)."""

    threads: int
    blocks: int
    smem_bytes: int
    reserved_bytes: int
    """Shared memory of each block that the system uses."""
    registers: int = 65536


def _of(threads: int, blocks: int, smem_kib: int, reserved_bytes: int = 1024) -> Multiprocessor:
    return Multiprocessor(threads, blocks, smem_kib << 10, reserved_bytes)


MULTIPROCESSORS = {
    "70": _of(2048, 32, 96, 0), "75": _of(1024, 16, 64, 0), "80": _of(2048, 32, 164), "86": _of(1536, 16, 100),
    "87": _of(1536, 16, 164), "89": _of(1536, 24, 100), "90": _of(2048, 32, 228), "100": _of(2048, 32, 228),
    "103": _of(2048, 32, 228), "120": _of(1536, 24, 100), "121": _of(1536, 24, 100),
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
    of_a_block = _up(smem_bytes + sm.reserved_bytes, 128)
    room = {
        "threads": sm.threads // 32 // warps,
        "registers": resident_warps // warps,
        "smem": sm.smem_bytes // of_a_block if of_a_block else sm.blocks,
        "blocks": sm.blocks,
    }
    blocks = min(room.values())
    return Occupancy(blocks, tuple(name for name, fitting in room.items() if fitting == blocks))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
